"""Spark's driver and Python workers read their token from the file PENSTOCK_TOKEN_FILE; nothing shows it."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from contextlib import redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from penstock.access.file import AccessFile
from penstock.client.segments import SegmentClient
from penstock.core.errors import Unauthenticated
from tests.spark.sending import outputs, send
from tests.support.running_worker import RunningWorker, running_worker
from tests.support.tokens import TOKEN
from tests.support.waiting import until

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[RunningWorker]:
    """With the events `0` to `9` in its source `numbers`. The tests' token, which Spark has, is that of its owner."""
    data = tmp_path / "data"
    data.mkdir()
    (data / "token").write_text(TOKEN)
    with running_worker(data, access=AccessFile(data)) as worker:
        send(f"127.0.0.1:{worker.ports['connector']}", "numbers", "s", [b"%d" % number for number in range(10)])
        yield worker


def numbers(spark: SparkSession, worker: RunningWorker) -> DataFrame:
    options = {"worker": f"127.0.0.1:{worker.ports['http']}", "source": "numbers"}
    return spark.readStream.format("penstock").options(**options).load()


def copy(frame: DataFrame, worker: RunningWorker, checkpoint: Path) -> list[str]:
    """What Spark shows about a query that reads and writes with the token: its plans and its progress."""
    options = {"worker": f"127.0.0.1:{worker.ports['http']}", "pipeline": "copy"}
    writer = frame.select("value").writeStream.format("penstock").options(**options)
    query = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
    try:
        query.awaitTermination()
        shown = io.StringIO()
        with redirect_stdout(shown):
            query.explain(extended=True)
            frame.explain(extended=True)
        return [shown.getvalue(), *(str(progress) for progress in query.recentProgress)]
    finally:
        query.stop()


def test_a_query_reads_and_writes_with_a_token_that_nothing_shows(
    spark: SparkSession, guarded: RunningWorker, tmp_path: Path
) -> None:
    texts = copy(numbers(spark, guarded), guarded, tmp_path / "checkpoint")
    assert [event.payload for event in outputs(guarded.address, "copy")] == [b"%d" % number for number in range(10)]
    assert "numbers" in "".join(texts)
    context = spark.sparkContext
    texts += map(str, context.getConf().getAll())
    assert context._jvm is not None
    texts.append(str(context._jvm.java.lang.System.getProperties()))
    texts += [file.read_text(errors="replace") for file in (tmp_path / "checkpoint").rglob("*") if file.is_file()]
    commands = [*command_lines(os.getpid())]
    assert any("java" in command for command in commands)
    assert not [text for text in [*texts, *commands] if TOKEN in text]


def test_an_unknown_token_fails_the_query_at_once(spark: SparkSession, guarded: RunningWorker, tmp_path: Path) -> None:
    frame = numbers(spark, guarded)
    (tmp_path / "data" / "token").write_text("another token, which Spark does not have")
    until(lambda: is_refused(guarded))
    with pytest.raises(Exception, match="the token is not valid, or was revoked"):
        copy(frame, guarded, tmp_path / "checkpoint")
    with SegmentClient(guarded.address, token="another token, which Spark does not have") as client:
        assert client.info("connector/numbers/0").length > 0


def is_refused(worker: RunningWorker) -> bool:
    """With Spark's token; a new one is effective within a second."""
    try:
        with SegmentClient(worker.address) as client:
            client.info("connector/numbers/0")
    except Unauthenticated:
        return True
    return False


def command_lines(process: int) -> Iterator[str]:
    """Of all processes that this one has started."""
    parents = {int(folder.name): _parent(folder) for folder in Path("/proc").iterdir() if folder.name.isdecimal()}
    for child in [child for child, parent in parents.items() if parent == process]:
        try:
            yield Path(f"/proc/{child}/cmdline").read_text(errors="replace").replace("\0", " ")
        except OSError:  # it has ended
            continue
        yield from command_lines(child)


def _parent(folder: Path) -> int:
    try:
        return int((folder / "stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0
