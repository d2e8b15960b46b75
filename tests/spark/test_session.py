"""Our Spark settings, and the user's."""

import os
import sys

import pytest

from penstock.spark.run.session import (
    JAVA_OPTIONS,
    SHUFFLE_PARTITIONS,
    interpreter_of,
    is_cluster,
    prepare_environment,
    spark_settings,
    with_conf,
)


def test_a_setting_of_the_user_replaces_ours() -> None:
    settings = with_conf(spark_settings("local[2]"), {"spark.ui.enabled": "true"})
    assert settings["spark.ui.enabled"] == "true"
    assert settings[JAVA_OPTIONS] == spark_settings("local[2]")[JAVA_OPTIONS]


def test_java_options_of_the_user_follow_and_thus_override_ours() -> None:
    ours = spark_settings("local[2]")[JAVA_OPTIONS]
    assert with_conf(spark_settings("local[2]"), {JAVA_OPTIONS: "-Xss4m"})[JAVA_OPTIONS] == f"{ours} -Xss4m"


def test_without_java_options_none_are_set() -> None:
    assert JAVA_OPTIONS not in with_conf({}, {"spark.ui.enabled": "true"})


def test_what_holds_on_this_machine_alone_is_not_set_on_a_cluster() -> None:
    local, cluster = spark_settings("local[2]"), spark_settings("spark://host:7077")
    assert local.keys() - cluster.keys() == {
        "spark.sql.streaming.checkpointFileManagerClass",
        "spark.driver.host",
        "spark.driver.bindAddress",
        SHUFFLE_PARTITIONS,
    }
    assert cluster.keys() - local.keys() == {"spark.executorEnv.PENSTOCK_SPARK_PYTHON"}


@pytest.mark.parametrize("master", ["spark://host:7077", "yarn", "k8s://https://host", "local-cluster[2,1,512]"])
def test_executors_run_the_drivers_interpreter_unless_the_user_has_chosen_another(
    monkeypatch: pytest.MonkeyPatch, master: str
) -> None:
    assert is_cluster(master)
    for name in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON", "PENSTOCK_SPARK_PYTHON"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    prepare_environment(master)
    assert interpreter_of(os.environ["PYSPARK_PYTHON"]) == sys.executable
    monkeypatch.setenv("PYSPARK_PYTHON", "/opt/python")
    prepare_environment(master)
    assert interpreter_of(os.environ["PYSPARK_PYTHON"]) == "/opt/python"
