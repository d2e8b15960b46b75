"""What the check of executors finds, without a cluster: the probe, and what is made of its answers."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.cli.executors import _log_file, _print, _print_json
from penstock.spark.run import executor_probe, executors
from penstock.spark.run.driver import SparkNotStarted
from penstock.spark.run.executor_probe import MARK, Process, answer, unreachable, versions
from penstock.spark.run.executors import (
    CLOCK_SECONDS_MAX,
    Checked,
    ExecutorReport,
    is_encrypted,
    reports_of_all,
    tasks_of_a_round,
)
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


def test_processes_of_the_cluster_that_cannot_be_reached_are_reported_while_they_are_listed(
    worker: RunningWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(executor_probe, "LISTED_SECONDS_MAX", 0.05)
    monkeypatch.setattr(executor_probe, "_LOOK_SECONDS", 0.06)
    http, segment = (f"127.0.0.1:{worker.ports[name]}" for name in ("http", "segment"))
    nowhere, gone = f"127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}"
    fine = [Process("http", http), Process("segment", segment)]
    first = [*fine, Process("http", nowhere), Process("segment", nowhere), Process("http", gone)]
    listed = [first[:-1], first]
    failed = unreachable(lambda: listed.pop() if len(listed) > 1 else listed[0], http)
    assert {*failed} == {Process("http", nowhere), Process("segment", nowhere)}
    assert all(f"the worker at {nowhere} cannot be reached" in reason for reason in failed.values())
    assert unreachable(lambda: fine, http) == {}
    with_tls = unreachable(lambda: fine[:1], f"https://{http}")
    assert [*with_tls.values()] == [f"https://{http} names {http}, which does not use TLS"]


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
    with pytest.raises(SparkNotStarted) as caught:
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
    hint = checked(report, worker="127.0.0.1:7102").hint()
    assert hint.startswith("127.0.0.1:7102 is a loopback address: on each machine it means that machine.")


class Cluster:
    """`rounds`: for each, how many executors have registered by then, and the reports that it returns."""

    def __init__(self, *rounds: tuple[int, list[ExecutorReport]]) -> None:
        self._rounds = iter(rounds)
        self._registered = 0
        self.asked = 0

    def executors(self) -> int:
        return self._registered

    def run(self) -> list[ExecutorReport]:
        self.asked += 1
        self._registered, reports = next(self._rounds)
        return reports


def report(executor: str, http: str = "") -> ExecutorReport:
    return ExecutorReport(executor, "10.0.0.8", OURS, 0.0, http, "")


def test_executors_that_got_no_task_are_asked_again() -> None:
    cluster = Cluster((2, [report("0"), report("0")]), (2, [report("1")]))
    assert [one.executor for one in reports_of_all(cluster, 0.0)] == ["0", "1"]


def test_executors_that_register_after_a_round_are_asked_too() -> None:
    class Late(Cluster):
        """The second one registers when all were asked that had registered before."""

        looks = 0

        def executors(self) -> int:
            self.looks += 1
            return min(2, self.looks)

    cluster = Late((1, [report("0")]), (2, [report("0"), report("1")]))
    found = reports_of_all(cluster, 0.0)
    assert [one.executor for one in found] == ["0", "1"]
    assert cluster.asked == 2


def test_an_executor_that_never_gets_a_task_does_not_delay_a_start_forever() -> None:
    cluster = Cluster(*[(2, [report("0")])] * 100)
    assert len(reports_of_all(cluster, 0.0)) == 1
    assert cluster.asked < 10


def test_an_executor_that_has_reached_the_worker_once_can() -> None:
    for order in (["", "timed out"], ["timed out", ""]):
        (found,) = reports_of_all(Cluster((1, [report("0", http) for http in order])), 0.0)
        assert not found.http


@pytest.mark.parametrize(
    ("parallelism", "executors", "tasks"),
    [
        (2, 1, 2),  # nothing has registered yet
        (8, 2, 8),  # as many as cores
        (2000, 100, 400),
        (1000, 1, 16),  # spark.default.parallelism, far more than cores
        (1, 10, 10),  # far fewer
    ],
)
def test_a_round_has_a_few_tasks_for_each_executor(parallelism: int, executors: int, tasks: int) -> None:
    assert tasks_of_a_round(parallelism, executors) == tasks


def test_sparks_connections_are_encrypted_only_with_authentication() -> None:
    aes, sasl, tls = "spark.network.crypto.enabled", "spark.authenticate.enableSaslEncryption", "spark.ssl.rpc.enabled"
    assert not is_encrypted({})
    assert not is_encrypted({aes: "true", sasl: "true"})
    assert not is_encrypted({"spark.authenticate": "true", aes: "false"})
    assert all(is_encrypted({"spark.authenticate": "true", name: "True"}) for name in (aes, sasl))
    assert is_encrypted({tls: "true"})


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


def test_sparks_log_is_kept_if_an_error_names_it() -> None:
    with _log_file() as ended:
        ended.write_text("fine")
    assert not ended.parent.exists()
    with pytest.raises(SparkNotStarted), _log_file() as failed:
        raise SparkNotStarted("Spark did not start", f"See {failed}.")
    assert failed.parent.exists()
    shutil.rmtree(failed.parent)
