"""What Spark tells of a query that has ended becomes a sentence and a decision."""

import penstock
from penstock.core.errors import DataLoss, Fenced
from penstock.spark.failures import failure_of

SPARK = penstock.__file__.replace("penstock/__init__.py", "penstock/spark/source.py")


def told(trace: str) -> str:
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


def test_a_users_error_shows_the_users_lines_and_may_pass() -> None:
    failure = failure_of(told(USERS))
    assert not failure.is_final
    assert 'File "/home/me/count.py", line 12, in parse' in failure.text
    assert failure.text.endswith("ValueError: invalid literal\nfor int()")


def test_the_last_of_several_tracebacks_counts() -> None:
    chained = USERS.replace("ValueError", "KeyError") + "\n\nDuring handling of it:\n\n" + USERS
    assert "KeyError" not in failure_of(told(chained)).text


def test_an_older_generation_is_not_started_again() -> None:
    trace = f'Traceback (most recent call last):\n  File "{SPARK}", line 5, in latestOffset\n    ask()\n'
    failure = failure_of(told(trace + "penstock.core.errors.Fenced: generation 3 has taken over"))
    assert failure.is_final
    assert failure.text == "generation 3 has taken over"
    assert failure.hint == Fenced.hint
    hinted = failure_of(told(trace + "penstock.core.errors.Fenced: generation 3 has taken over\nStop this one."))
    assert (hinted.text, hinted.hint) == ("generation 3 has taken over", "Stop this one.")


def test_lost_data_is_final_and_a_worker_that_is_away_is_not() -> None:
    trace = "Traceback (most recent call last):\n"
    lost = failure_of(told(trace + "penstock.core.errors.DataLoss: bytes 0 to 100 of connector/a/0 are gone"))
    assert (lost.is_final, lost.hint) == (True, DataLoss.hint)
    assert not failure_of(told(trace + "penstock.core.errors.Unavailable: no worker answers")).is_final
    assert not failure_of(told(trace + "penstock.core.errors.QuotaReached: full")).is_final


def test_what_is_no_python_is_told_in_sparks_words() -> None:
    text = (
        "[STREAM_FAILED] Query [id = 9] terminated with exception: No space left SQLSTATE: XX000\n=== Streaming Query"
    )
    assert failure_of(text + " ===\nmore").text == "No space left"
