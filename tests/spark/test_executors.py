"""What the check of executors finds, without a cluster: the probe, and what is made of its answers."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.cli.executors import _print, _print_json
from penstock.core.errors import RequestError
from penstock.spark.run import executor_probe, executors
from penstock.spark.run.executor_probe import MARK, answer, versions
from penstock.spark.run.executors import CLOCK_SECONDS_MAX, Checked, ExecutorReport
from tests.support.ports import free_port
from tests.support.running_worker import RunningWorker

OURS = {
    "python": "3.11.4",
    "penstock": "0.1",
    "pyspark": "4.3.0",
    "pyarrow": "21.0.0",
    "numpy": "2.1.0",
    "pandas": "2.2.3",
}


def checked(*reports: ExecutorReport, worker: str = "10.0.0.7:7102") -> Checked:
    return Checked("/opt/venv/bin/python", worker, reports, OURS)


def probed(python: str, asked: dict[str, str]) -> dict[str, object]:
    """As Spark runs it."""
    script, text = executors._SCRIPT % MARK, Path(executor_probe.__file__).read_text()
    done = subprocess.run(
        ["/bin/sh", "-c", script, python, text],
        input=json.dumps(asked) + "\n",
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONPATH": ":".join(sys.path), "PATH": "/usr/bin:/bin"},
    )
    line = next(line for line in done.stdout.splitlines() if line.startswith(MARK))
    found: dict[str, object] = json.loads(line.removeprefix(MARK))
    return found


@pytest.mark.process
def test_the_probe_finds_the_versions_that_tasks_would_use_and_tries_both_ports(worker: RunningWorker) -> None:
    asked = {"worker": f"127.0.0.1:{worker.ports['http']}", "token": "any", "penstock": versions()["penstock"]}
    asked["python"] = "/no/such/wrapper"
    found = probed(sys.executable, asked)
    assert found["versions"] == versions()
    assert all(versions().values())
    assert found["lacks"] == "/no/such/wrapper"
    assert (found["http"], found["segment"]) == ("", "")


@pytest.mark.process
def test_a_missing_python_is_an_answer() -> None:
    found = probed("/no/such/python", {})
    assert found["versions"] == {}
    report = ExecutorReport("0", "10.0.0.8", {}, 0.0)
    assert checked(report).differences() == ["executor 0 on 10.0.0.8 has no Python at /opt/venv/bin/python"]


def test_a_worker_that_cannot_be_reached_is_named_with_the_reason() -> None:
    nowhere = f"127.0.0.1:{free_port()}"
    found = answer({"worker": nowhere, "token": "", "penstock": versions()["penstock"], "python": sys.executable})
    assert f"the worker at {nowhere} cannot be reached" in str(found["http"])
    assert found["segment"] == "not tried"


def test_executors_of_another_version_of_penstock_do_not_try_the_worker() -> None:
    assert "http" not in answer({"worker": "127.0.0.1:1", "token": "", "penstock": "another", "python": ""})


@pytest.mark.parametrize(
    ("name", "there", "difference"),
    [
        ("python", "3.12.1", "has Python 3.12.1, not 3.11.4"),
        ("python", "3.11.9", None),
        ("penstock", "0.1.1", "has Penstock 0.1.1, not 0.1"),
        ("penstock", "", "has no Penstock"),
        ("pyspark", "4.2.0", "has PySpark 4.2.0, not 4.3.0"),
        ("pyarrow", "20.0.0", "has pyarrow 20.0.0, not 21.0.0"),
        ("numpy", "2.1.7", None),
        ("pandas", "", "has no pandas"),
    ],
)
def test_versions_must_agree_and_only_fixes_may_differ(name: str, there: str, difference: str | None) -> None:
    found = checked(ExecutorReport("3", "10.0.0.8", OURS | {name: there}, 0.0, "", "")).differences()
    assert found == ([] if difference is None else [f"executor 3 on 10.0.0.8 {difference}"])


def test_the_error_names_each_executor_what_differs_and_what_to_do() -> None:
    fine = ExecutorReport("0", "10.0.0.8", OURS, 0.0, "", "")
    checked(fine).require()
    late = ExecutorReport("1", "10.0.0.9", OURS, -CLOCK_SECONDS_MAX - 1, "", "")
    old = ExecutorReport("2", "10.0.0.9", OURS | {"pyarrow": "1.0"}, 0.0, "refused", "not tried")
    with pytest.raises(RequestError) as caught:
        checked(fine, late, old).require()
    assert str(caught.value).splitlines() == [
        "Spark's executors cannot run the pipelines:",
        "  executor 1 on 10.0.0.9 has a clock that is 31 s behind",
        "  executor 2 on 10.0.0.9 has pyarrow 1.0, not 21.0.0",
        "  executor 2 on 10.0.0.9 cannot use the worker's HTTP port: refused",
    ]
    for part in ("10.0.0.7:7102; --advertised-worker", "/opt/venv/bin/python", "PYSPARK_PYTHON", "NTP"):
        assert part in caught.value.hint


def test_a_worker_on_loopback_is_explained() -> None:
    report = ExecutorReport("0", "10.0.0.8", OURS, 0.0, "refused", "not tried")
    assert "is loopback, which is another machine for each executor" in checked(report, worker="127.0.0.1:7102").hint()


def test_a_clock_is_off_by_as_much_as_the_answer_cannot_explain() -> None:
    line = json.dumps({"host": "h", "executor": "0", "time": 100.0, "versions": OURS})
    assert executors._report(line, before=90.0, after=110.0).clock_seconds == 0
    assert executors._report(line, before=130.0, after=140.0).clock_seconds == -30
    assert executors._report(line, before=50.0, after=60.0).clock_seconds == 40


def test_the_table_shows_driver_executors_and_errors(capsys: pytest.CaptureFixture[str]) -> None:
    _print(checked(ExecutorReport("0", "10.0.0.8", OURS | {"pandas": ""}, 0.0, "", "")))
    shown = capsys.readouterr().out
    assert "driver" in shown
    assert "missing" in shown
    assert "reached" in shown
    assert "error: executor 0 on 10.0.0.8 has no pandas" in shown


def test_json_has_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    _print_json(checked(ExecutorReport("0", "10.0.0.8", OURS | {"pandas": ""}, 0.0, "", "")))
    found = json.loads(capsys.readouterr().out)
    assert found["driver"] == OURS
    assert found["executors"][0]["differences"] == ["has no pandas"]
