"""What Spark reports about a failed query becomes a message and a decision."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import penstock
from penstock.core.errors import DataLoss, Fenced
from penstock.protocol.api.pipelines import BatchRanges, Range
from penstock.spark.carried import OtherVersion
from penstock.spark.run.failures import exception_text, failure_of, ranges_text
from tests.support.ports import free_port
from tests.support.waiting import until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SPARK = penstock.__file__.replace("penstock/__init__.py", "penstock/spark/source.py")


def reported(trace: str) -> str:
    return (
        "[STREAM_FAILED] Query [id = 96248d1b, runId = 91820dee] terminated with exception: [PYTHON_EXCEPTION] An "
        f"exception was thrown from the Python worker: {trace}\n SQLSTATE: 38000 SQLSTATE: XXKST\n"
        "=== Streaming Query ===\nIdentifier: [id = 96248d1b]\nLogical Plan:\nTraceback\n"
    )


USERS = """Traceback (most recent call last):
  File "/site-packages/pyspark.zip/pyspark/worker.py", line 42, in main
    process()
  File "/home/me/count.py", line 12, in parse
    return int(text)
           ^^^^^^^^^
ValueError: invalid literal
for int()"""


def test_an_error_in_user_code_shows_the_users_lines_and_is_retried() -> None:
    failure = failure_of(reported(USERS))
    assert not failure.is_final
    assert 'File "/home/me/count.py", line 12, in parse' in failure.text
    assert failure.text.endswith("ValueError: invalid literal\nfor int()")


def test_the_last_of_several_tracebacks_counts() -> None:
    chained = USERS.replace("ValueError", "KeyError") + "\n\nDuring handling of it:\n\n" + USERS
    assert "KeyError" not in failure_of(reported(chained)).text


def test_a_fenced_generation_is_not_restarted() -> None:
    trace = f'Traceback (most recent call last):\n  File "{SPARK}", line 5, in latestOffset\n    ask()\n'
    failure = failure_of(reported(trace + "penstock.core.errors.Fenced: generation 3 has taken over"))
    assert failure.is_final
    assert failure.text == "generation 3 has taken over"
    assert failure.hint == Fenced.hint
    hinted = failure_of(reported(trace + "penstock.core.errors.Fenced: generation 3 has taken over\nStop this one."))
    assert (hinted.text, hinted.hint) == ("generation 3 has taken over", "Stop this one.")


def test_data_loss_is_final_and_an_unavailable_worker_is_not() -> None:
    trace = "Traceback (most recent call last):\n"
    lost = failure_of(reported(trace + "penstock.core.errors.DataLoss: bytes 0 to 100 of connector/a/0 are gone"))
    assert (lost.is_final, lost.hint) == (True, DataLoss.hint)
    assert not failure_of(reported(trace + "penstock.core.errors.Unavailable: no worker answers")).is_final
    assert not failure_of(reported(trace + "penstock.core.errors.QuotaReached: full")).is_final


def test_a_message_of_one_word_is_reported_with_its_class() -> None:
    text = (
        "[STREAM_FAILED] Query [id = 9] terminated with exception: /state/0/1.delta SQLSTATE: XXKST\n"
        "=== Streaming Query ===\nIdentifier: [id = 9]\n"
        "Caused by: java.nio.file.NoSuchFileException: /state/0/1.delta"
    )
    assert failure_of(text).text == "java.nio.file.NoSuchFileException: /state/0/1.delta"
    assert failure_of(text.replace("/state/0/1.delta", "No such file")).text == "No such file"


def test_an_error_outside_python_is_reported_with_the_text_of_spark() -> None:
    text = (
        "[STREAM_FAILED] Query [id = 9] terminated with exception: No space left SQLSTATE: XX000\n=== Streaming Query"
    )
    assert failure_of(text + " ===\nmore").text == "No space left"


def test_the_same_error_at_the_same_line_has_the_same_cause_whatever_the_row() -> None:
    failure = failure_of(reported(USERS))
    assert failure.cause == "ValueError /home/me/count.py:12"
    assert failure.cause == failure_of(reported(USERS.replace("literal", "number"))).cause
    assert "penstock.dead_letters.apply" in failure.hint
    assert failure_of(reported(USERS.replace("line 12", "line 13"))).cause != failure.cause


OUTAGE = f"""Traceback (most recent call last):
  File "{SPARK}", line 64, in latestOffset
    return self._coordinator.cut()
  File "/venv/lib/python3.11/site-packages/tenacity/__init__.py", line 436, in __iter__
    do = self.iter(retry_state=retry_state)
  File "/usr/lib/python3.11/concurrent/futures/_base.py", line 449, in result
    return self.__get_result()
penstock.client.segments.failures.Interrupted: 127.0.0.1:7102 cannot be reached: Connection refused
Is the worker running?"""


def test_an_outage_of_the_worker_is_one_sentence_without_any_code() -> None:
    failure = failure_of(reported(OUTAGE))
    assert (failure.text, failure.hint) == (
        "127.0.0.1:7102 cannot be reached: Connection refused",
        "Is the worker running?",
    )
    assert (failure.is_outage, failure.is_final, failure.cause) == (True, False, None)


def test_only_the_users_own_files_are_shown_as_the_users_code() -> None:
    frames = OUTAGE.rpartition("\npenstock.client")[0]
    internal = failure_of(reported(f"{frames}\nKeyError: 'epoch'"))
    assert (internal.text, internal.cause) == ("KeyError: 'epoch'", None), "none of the frames is the user's"
    users = """  File "/home/me/count.py", line 12, in parse
    return requests.get(text)
  File "/venv/lib/python3.11/site-packages/requests/api.py", line 73, in get
    return request("get")"""
    mixed = failure_of(reported(f"{frames}\n{users}\nKeyError: 'epoch'"))
    assert mixed.text.splitlines() == [*users.splitlines()[:2], "KeyError: 'epoch'"]
    installed = users.replace("/home/me", "/venv/lib/python3.11/site-packages/mine")
    assert "site-packages/mine/count.py" in failure_of(reported(f"{frames}\n{installed}\nKeyError: 'epoch'")).text


def test_an_unreachable_or_unavailable_service_is_an_outage() -> None:
    trace = "Traceback (most recent call last):\n"
    for name in ("Unavailable", "DiskFull", "QuotaReached", "CheckpointFailed", "StoreFailed"):
        assert failure_of(reported(f"{trace}penstock.core.errors.{name}: not now")).is_outage, name
    for name in ("DataLoss", "Fenced", "Damaged"):
        assert not failure_of(reported(f"{trace}penstock.core.errors.{name}: never")).is_outage, name
    for name in ("ConnectionResetError", "requests.exceptions.ReadTimeout", "urllib.error.URLError"):
        assert failure_of(reported(USERS.replace("ValueError", name))).is_outage, name
    for name in ("OSError", "ValueError"):
        assert not failure_of(reported(USERS.replace("ValueError", name))).is_outage, name
    java = "[STREAM_FAILED] Query [id = 9] terminated with exception: Job aborted.\nCaused by: java.net.{}: broker:9092"
    assert failure_of(java.format("ConnectException")).is_outage
    assert not failure_of(java.format("URISyntaxException")).is_outage


@pytest.mark.spark
def test_a_service_that_a_source_of_sparks_own_cannot_reach_is_an_outage(spark: SparkSession, tmp_path: Path) -> None:
    """Spark's text has only the message of its cause, without its class."""
    stream = spark.readStream.format("socket").options(host="127.0.0.1", port=free_port()).load()
    query = stream.writeStream.format("noop").option("checkpointLocation", str(tmp_path)).start()
    until(lambda: not query.isActive)
    text = exception_text(query)
    assert text is not None
    failure = failure_of(text)
    assert (failure.text, failure.is_outage) == ("Connection refused", True)


def test_a_failure_has_a_summary_of_one_line() -> None:
    assert failure_of(reported(USERS)).summary == "ValueError: invalid literal: for int()"


def test_a_connection_error_in_user_code_has_no_fixed_cause() -> None:
    for name in ("ConnectionError", "requests.exceptions.ReadTimeout", "OSError", "urllib.error.URLError"):
        assert failure_of(reported(USERS.replace("ValueError", name))).cause is None, name


def test_no_jvm_stack_trace_is_shown() -> None:
    text = failure_of(
        reported(USERS + "\n\n\tat org.apache.spark.api.python(PythonRunner.scala:1)\n\nDriver stacktrace:")
    ).text
    assert text.endswith("ValueError: invalid literal\nfor int()")


def test_a_line_that_the_executor_does_not_have_is_shown_by_the_driver() -> None:
    here = f'Traceback (most recent call last):\n  File "{__file__}", line 1, in parse\nValueError: bad'
    assert '"""What Spark reports' in failure_of(reported(here)).text


def test_a_python_worker_that_dies_is_reported_as_such() -> None:
    failure = failure_of(reported("SparkException: Python worker exited unexpectedly (crashed).\n\tat org.apache"))
    assert failure.text == "the Python worker ended in the middle of a task"
    assert "os._exit" in failure.hint


def test_spark_errors_about_data_are_errors_of_the_user() -> None:
    text = (
        "[STREAM_FAILED] Query [id = 9] terminated with exception: [DIVIDE_BY_ZERO] Division by zero. SQLSTATE: 22012"
    )
    assert failure_of(text).cause == "[DIVIDE_BY_ZERO]"
    assert failure_of(text.replace("22012", "XXKST")).cause is None


def test_the_ranges_of_a_batch_are_listed_up_to_a_limit() -> None:
    batch = BatchRanges(7, {"in": [Range(f"connector/s/{number}", 5, 9) for number in range(12)]})
    text = ranges_text(batch)
    assert text.startswith("at an event of epoch 7: connector/s/0 @ 5 to 9, connector/s/1 @ 5 to 9")
    assert text.endswith("and 2 more")


def test_the_ranges_of_several_inputs_are_named_by_input() -> None:
    batch = BatchRanges(7, {"left": [Range("connector/s/0", 5, 9)], "right": [Range("connector/t/0", 0, 4)]})
    assert ranges_text(batch) == "at an event of epoch 7: left: connector/s/0 @ 5 to 9, right: connector/t/0 @ 0 to 4"


def test_a_query_with_a_nondeterministic_function_is_restarted() -> None:
    from penstock.spark.side_outputs import NotRepeatable

    text = "apply share made different decisions for the same rows"
    error = f"{NotRepeatable.__module__}.NotRepeatable: {text}\n{NotRepeatable.hint}"
    failure = failure_of(reported(USERS.partition("ValueError")[0] + error))
    assert (failure.is_final, failure.is_outage, failure.cause) == (False, False, None)
    assert (failure.text, failure.hint) == (
        "apply share made different decisions for the same rows",
        NotRepeatable.hint,
    )


def test_an_executor_without_penstock_is_explained() -> None:
    text = "EOFException occurred while reading the port number from penstock.spark.run.python_daemon's stdout."
    failure = failure_of(f"terminated with exception: Job aborted: Lost task 0.0 in stage 0.0 (TID 0): {text}")
    assert text in failure.text
    assert "penstock check --master URL" in failure.hint
    assert not failure.is_of_a_batch, "no event is to blame"


@pytest.mark.parametrize(
    "error",
    [
        "penstock.spark.carried.OtherVersion: host has Penstock 0.2, the driver has 0.1",
        "pyspark.errors.exceptions.base.PySparkRuntimeError: [PYTHON_VERSION_MISMATCH] Python in worker has 3.12",
    ],
)
def test_an_executor_with_another_version_blames_no_event_and_is_waited_for(error: str) -> None:
    trace = (
        'Traceback (most recent call last):\n  File "/site-packages/pyspark/worker.py", line 42, in main\n    load()\n'
    )
    failure = failure_of(reported(trace + error))
    assert (failure.is_final, failure.is_outage, failure.is_of_a_batch) == (False, True, False)
    assert error.partition(": ")[2] in failure.text
    assert failure.hint == OtherVersion.hint
