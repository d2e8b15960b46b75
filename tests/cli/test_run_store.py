"""`penstock run --store`: the worker that it starts has its journal in a bucket, and what it waits for is shown."""

import signal
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from penstock.cli import run as run_command
from penstock.cli.connect import worker_status
from penstock.cli.embedded_worker import embedded_worker
from penstock.cli.run_setup import Place, RunOptions, worker_of
from penstock.core.errors import PenstockError, RequestError, Unavailable
from tests.spark.test_run_command import Run
from tests.support.bucket_worker import BucketWorker
from tests.support.java import need_spark
from tests.worker.bucket_owners import worker_id

SMALL = ("--chapter-size=1MiB", "--reserve=2MiB")
PIPELINE = "from penstock.spark import pipeline\n@pipeline\ndef copy(lines): return lines\n"

app = typer.Typer(pretty_exceptions_enable=False)
run_command.register(app)


def options(data: Path, store: str) -> RunOptions:
    return RunOptions(
        place=Place.of(data, None, None),
        worker=None,
        store=store,
        worker_options=[f"--store={store}", "--shard=0", *SMALL],
        trigger_ms=None,
        available_now=False,
        seconds_max=None,
        master="local[1]",
        conf={},
    )


@pytest.mark.parametrize(
    ("arguments", "environment", "said"),
    [
        (["--store", "s3://b", "--worker", "127.0.0.1:1"], {}, "--store and --worker cannot be used together"),
        (["--worker", "127.0.0.1:1"], {"PENSTOCK_STORE": "s3://b"}, "--store and --worker cannot be used together"),
        (["--take-over"], {}, "--take-over is for a journal in a bucket"),
    ],
)
def test_options_that_do_not_fit_are_refused(
    arguments: list[str], environment: dict[str, str], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_command, "use_java", lambda: None)
    monkeypatch.setattr(run_command, "check_installed", lambda: None)
    error = CliRunner().invoke(app, ["mine.py", *arguments], env=environment).exception
    assert isinstance(error, PenstockError)
    assert said in str(error)
    assert error.hint


@pytest.mark.process
def test_the_worker_gets_the_store_and_a_running_worker_with_another_one_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, data = (tmp_path / "bucket").as_uri(), tmp_path / "data"
    monkeypatch.setenv("PENSTOCK_STORE", "s3://not-for-the-child")

    with worker_of(options(data, store)) as found:
        bucket = worker_status(found.http).store.bucket
        assert bucket is not None
        assert bucket.url == store
        with worker_of(options(data, store)) as again:
            assert again.process is None
        with pytest.raises(RequestError, match=f"its journal is in {store}, not in file:///elsewhere"):
            worker_of(options(data, "file:///elsewhere")).__enter__()
    assert not (data / "journal").exists()
    monkeypatch.delenv("PENSTOCK_STORE")
    with pytest.raises(Unavailable, match=f"the journal of {data} is in {store}"), embedded_worker(data, SMALL):
        pass
    with (
        embedded_worker(tmp_path / "disk", SMALL),
        pytest.raises(RequestError, match="its journal is on its disk, not in"),
    ):
        worker_of(options(tmp_path / "disk", store)).__enter__()


@pytest.mark.process
def test_a_run_whose_worker_waits_as_a_standby_shows_it_and_ends_by_ctrl_c(tmp_path: Path, s3_url: str) -> None:
    need_spark()
    (tmp_path / "mine.py").write_text(PIPELINE)
    with BucketWorker(tmp_path / "owner", s3_url) as owner:
        with Run(tmp_path, "mine.py", "--store", s3_url) as run:
            waits = f"the worker on penstock-data is waiting as a standby: worker {worker_id(owner)}"
            run.until(lambda: waits in run.said)
            run.process.send_signal(signal.SIGINT)
            assert run.ended() == 130, run.said
            assert "Traceback" not in run.said
        assert worker_status(f"127.0.0.1:{owner.http_port}").store.bucket is not None
