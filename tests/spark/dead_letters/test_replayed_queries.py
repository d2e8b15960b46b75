"""Poison events do not stop a pipeline; after a fix they are replayed, and take effect once."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgpack
import pytest

from penstock import dead_letters
from penstock.client.coordinator import CoordinatorClient
from penstock.core.errors import PipelineError
from penstock.spark import Pipeline, pipeline
from penstock.spark.codecs.codec import Branch
from tests.protocol.stored.events import stored
from tests.spark.sending import outputs, send
from tests.spark.stored_data import store_events
from tests.support.running_worker import RunningWorker

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

PAYLOADS = [b'{"n": 1}', b"poison", b'{"n": 0}', b'{"n": 4}']


def shares(*, mended: bool) -> Pipeline:
    """12 / n of each event. The fixed version can also process the others."""

    @pipeline(name="shares")
    def shares(roofs: DataFrame) -> DataFrame:
        def share(row: dict[str, Any]) -> dict[str, Any]:
            return {"share": 12 // (row["n"] or 12) if mended else 12 // row["n"]}

        source = roofs
        if mended:
            source = roofs.selectExpr("*", "coalesce(nullif(value, CAST('poison' AS BINARY)), '{}') AS text")
        decoded = dead_letters.decode_json(source, "n int", column="text" if mended else "value")
        keep = ["source", "stream", "stream_id", "message_id", "event_time", "key"]
        return dead_letters.apply(decoded, share, "share int", per="row", keep=keep)

    return shares


def typed_shares(*, mended: bool) -> Pipeline:
    """12 / n of each event, whose content type names its format."""

    def typed(attic: DataFrame) -> DataFrame:
        def share(row: dict[str, Any]) -> dict[str, Any]:
            return {"share": 12 // (row["n"] or 12) if mended else 12 // row["n"]}

        return dead_letters.apply(attic, share, "share int", per="row", keep=["message_id"])

    branches = (Branch("csv", "n int", "", "text/csv"), Branch("json", "n int"))
    return replace(pipeline(typed), decoding={"attic": branches})


def run(spark: SparkSession, worker: RunningWorker, folder: Path, *, mended: bool, typed: bool = False) -> None:
    """Run on everything that is stored now."""
    from penstock.spark.run.attempt import RunSettings
    from penstock.spark.run.runner import Runner

    http = f"127.0.0.1:{worker.ports['http']}"
    settings = RunSettings(worker=http, checkpoints=str(folder / "checkpoints"), cores=2, available_now=True)
    Runner(spark, [typed_shares(mended=mended) if typed else shares(mended=mended)], settings).run(120)


def found(worker: RunningWorker) -> dict[int, int]:
    """Message → its share."""
    events = outputs(worker.address, "shares")
    shares = {event.event_id: json.loads(event.payload)["share"] for event in events}
    assert len(shares) == len(events), "none is there twice"
    return shares


def test_poison_events_go_to_err_and_are_processed_once_when_replayed_after_a_fix(
    spark: SparkSession, worker: RunningWorker, tmp_path: Path
) -> None:
    send(f"127.0.0.1:{worker.ports['connector']}", "roofs", "roof", PAYLOADS, key=b"k")
    run(spark, worker, tmp_path, mended=False)
    assert found(worker) == {1: 12, 4: 3}
    bad = outputs(worker.address, "shares", "err")
    assert [(event.event_id, event.payload, event.key) for event in bad] == [
        (2, b"poison", b"k"),
        (3, b'{"n": 0}', b"k"),
    ]
    assert bad[0].metadata["reason"] == "`value` is not valid JSON"
    begin = "ZeroDivisionError: integer division or modulo by zero (at test_replayed_queries.py:"
    assert bad[1].metadata["reason"].startswith(begin)
    assert bad[0].metadata["segment"].startswith("connector/roofs/")

    read = spark.read.format("penstock").option("worker", f"127.0.0.1:{worker.ports['http']}")
    rows = read.option("source", "pipeline:shares/err").option("columns", "value,stream,metadata").load().collect()
    assert [(row["value"], row["stream"]) for row in rows] == [(b"poison", "roof"), (b'{"n": 0}', "roof")]
    assert [msgpack.unpackb(row["metadata"]) for row in rows] == [event.metadata for event in bad]

    with CoordinatorClient(f"127.0.0.1:{worker.ports['http']}") as client:
        (about,) = client.dead_letters("shares", "err").ports
        assert client.replay("shares", "err", about.replayed, about.end).count == 2
        run(spark, worker, tmp_path, mended=True)
        assert found(worker) == {1: 12, 2: 1, 3: 1, 4: 3}
        assert len(outputs(worker.address, "shares", "err")) == 2
        (about,) = client.dead_letters("shares", "err").ports
        with pytest.raises(PipelineError):
            client.replay("shares", "err", about.replayed, about.end)
    again = {event.event_id: event for event in outputs(worker.address, "shares")}
    for event in bad:
        assert again[event.event_id].metadata == {"source": "roofs", "stream": "roof"}
        assert again[event.event_id].event_time == event.event_time
        assert again[event.event_id].stream_id == event.stream_id


def test_a_replayed_event_is_decoded_by_the_codec_of_its_content_type(
    spark: SparkSession, worker: RunningWorker, tmp_path: Path
) -> None:
    """The codec of events without a content type would refuse it."""
    typed = {"content_type": "text/csv", "headers": {"a": "b"}}
    events = [stored(7, 1, 1, b"", b"0\n", typed), stored(7, 2, 1, b"", b'{"n": 3}')]
    store_events(worker, "connector/attic/0", events)
    run(spark, worker, tmp_path, mended=False, typed=True)
    (bad,) = outputs(worker.address, "typed", "err")
    assert (bad.payload, bad.metadata["content_type"]) == (b"0\n", "text/csv")
    assert bad.metadata["reason"].startswith("ZeroDivisionError")
    with CoordinatorClient(f"127.0.0.1:{worker.ports['http']}") as client:
        (about,) = client.dead_letters("typed", "err").ports
        assert client.replay("typed", "err", about.replayed, about.end).count == 1
    (again,) = outputs(worker.address, "typed", "replay.attic")
    assert again.metadata == {**typed, "source": "attic"}
    run(spark, worker, tmp_path, mended=True, typed=True)
    done = {event.event_id: json.loads(event.payload)["share"] for event in outputs(worker.address, "typed")}
    assert done == {1: 1, 2: 4}
    assert len(outputs(worker.address, "typed", "err")) == 1
