"""Our Spark settings, and the user's."""

from penstock.spark.run.session import JAVA_OPTIONS, spark_settings, with_conf


def test_a_setting_of_the_user_replaces_ours() -> None:
    settings = with_conf(spark_settings("local[2]"), {"spark.ui.enabled": "true"})
    assert settings["spark.ui.enabled"] == "true"
    assert settings[JAVA_OPTIONS] == spark_settings("local[2]")[JAVA_OPTIONS]


def test_java_options_of_the_user_follow_and_thus_override_ours() -> None:
    ours = spark_settings("local[2]")[JAVA_OPTIONS]
    assert with_conf(spark_settings("local[2]"), {JAVA_OPTIONS: "-Xss4m"})[JAVA_OPTIONS] == f"{ours} -Xss4m"


def test_without_java_options_none_are_set() -> None:
    assert JAVA_OPTIONS not in with_conf({}, {"spark.ui.enabled": "true"})
