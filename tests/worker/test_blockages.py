"""Which link blocks, from what is known about the progress of each. Real programs are in `test_situations.py`."""

from typing import Any

from penstock.protocol.api.delivery import SinkStatus
from penstock.protocol.api.pipelines import PipelineStatus, QueryReport
from penstock.protocol.api.status import ConnectorStatus
from penstock.worker.blockages import Facts, blockages

ANSWERS = QueryReport(jvm_silent_seconds=1, doing="Processing new data")


def pipeline(**more: Any) -> PipelineStatus:
    zeros = ("incarnation", "generation", "planned", "merged", "delivered", "complete", "proved", "undelivered_bytes")
    known: dict[str, Any] = {"watermark": None, "blocked": None, "lag_bytes": 100, "state": "RUNNING", "name": "p"}
    known |= dict.fromkeys(("heartbeat_age_seconds", "driver_silent_seconds", "asked_seconds"), 1.0)
    return PipelineStatus(**dict.fromkeys(zeros, 0) | known | more)


def sink(name: str, state: str, reason: str = "", lacking: int = 1, **more: Any) -> SinkStatus:
    plain: dict[str, Any] = {
        "pipeline": "p",
        "port": "out",
        "url": "",
        "guarantee": "",
        "votes": True,
        "at": 0,
        "sent": 0,
        "parked": 0,
    }
    return SinkStatus(**{**plain, "sink": name, "state": state, "reason": reason, "lacking": lacking, **more})


def found(one: PipelineStatus, *sinks: SinkStatus) -> list[str]:
    return [str(each) for each in blockages(Facts(pipelines=[one], sinks=sinks))]


def test_a_pipeline_that_makes_progress_is_not_blocked() -> None:
    assert found(pipeline()) == []
    assert found(pipeline(running_epoch=3, running_seconds=9.0)) == []


def test_only_the_sink_that_has_not_answered_is_named() -> None:
    voted, ready = sink("a", "VOTED"), sink("c", "READY")
    assert found(pipeline(), voted, sink("b", "IN ROUND", "no answer for 19 s"), ready) == [
        "pipeline p is blocked by sink b (1 epoch waits): no answer for 19 s"
    ]


def test_a_sink_that_lacks_nothing_is_not_named() -> None:
    assert found(pipeline(), sink("a", "WAITING", "gone", lacking=0)) == []


def test_what_the_output_waits_for_is_not_repeated_when_a_sink_is_named() -> None:
    blocked = pipeline(blocked="blocked: 9 bytes of its output wait for sink a, sink b, and the limit is 5")
    assert found(blocked) == [f"pipeline p is {blocked.blocked}"]
    assert len(found(blocked, sink("a", "WAITING", "gone"), sink("b", "READY"))) == 1


def test_heartbeats_of_a_driver_do_not_hide_that_the_jvm_is_silent() -> None:
    (sentence,) = found(pipeline(query=QueryReport(jvm_silent_seconds=12), running_epoch=3, running_seconds=12.0))
    assert sentence.startswith("pipeline p is blocked by Spark's JVM: no answer for 12 s (100 B behind).")


def test_a_jvm_is_not_blamed_for_the_silence_of_its_driver() -> None:
    query = QueryReport(jvm_silent_seconds=12)
    (sentence,) = found(pipeline(query=query, heartbeat_age_seconds=12.0, driver_silent_seconds=12.0))
    assert sentence.startswith("pipeline p is blocked by its driver: no heartbeat for 12 s")
    (sentence,) = found(pipeline(query=query, driver_silent_seconds=12.0))
    assert sentence.startswith(
        "pipeline p: its driver has sent no heartbeat for 12 s; its query keeps running without it"
    )


def test_a_query_that_may_have_stopped_with_its_driver_is_not_said_to_run_on() -> None:
    assert not found(pipeline(heartbeat_age_seconds=9.99, driver_silent_seconds=10.0))
    (sentence,) = found(pipeline(heartbeat_age_seconds=10.0, driver_silent_seconds=10.01))
    assert sentence.startswith("pipeline p is blocked by its driver: no heartbeat for 10 s")


def test_a_long_epoch_is_named_with_the_progress_of_its_tasks() -> None:
    running = {"running_epoch": 12, "running_seconds": 40.0}
    query = QueryReport(jvm_silent_seconds=1, tasks_done=3, tasks=8, unmoved_seconds=2)
    (sentence,) = found(pipeline(**running, query=query))
    assert sentence.startswith("pipeline p: epoch 12 has been running in Spark for 40 s (3 of 8 tasks are done).")
    (sentence,) = found(pipeline(**running, query=query.later(36)), sink("a", "READY"))
    assert "blocked by Spark's JVM" in sentence, "nothing is known about the tasks since"
    query = QueryReport(jvm_silent_seconds=1, tasks_done=3, tasks=8, unmoved_seconds=38)
    (sentence,) = found(pipeline(**running, query=query))
    assert "(3 of 8 tasks are done, none has ended for 38 s)" in sentence


def test_a_query_between_two_triggers_is_not_blocked() -> None:
    waiting = QueryReport(jvm_silent_seconds=1, doing="Waiting for next trigger", unmoved_seconds=50)
    assert found(pipeline(asked_seconds=50.0, query=waiting)) == []
    (sentence,) = found(pipeline(asked_seconds=50.0, query=ANSWERS))
    assert sentence == "pipeline p is blocked by Spark: it has not asked for an epoch for 50 s: Processing new data"


def test_a_sink_that_accepts_nothing_reports_why_once() -> None:
    plain: dict[str, Any] = dict.fromkeys(("id", "instance", "type"), "") | {"name": "ill"}

    def connector(**more: Any) -> list[str]:
        return [one.text for one in blockages(Facts(connectors=[ConnectorStatus(**plain, **more)]))]

    tripped = {"breaker": "tripped", "breaker_reason": "refused"}
    assert connector(state="connected", reason="", **tripped) == ["connector ill's breaker is tripped: refused"]
    assert connector(state="disconnected", reason="refused; next attempt in 1 s", **tripped) == [
        "connector ill is disconnected: refused; next attempt in 1 s"
    ]


def test_a_slow_object_store_is_not_called_a_disk() -> None:
    waits = "40.0 MiB of 64.0 MiB wait for it"
    (disk,) = blockages(Facts(slow_disk=waits))
    (store,) = blockages(Facts(slow_disk=waits, is_on_bucket=True))
    assert str(disk).startswith(f"blocked by the disk: it is slow, {waits}, so sources get fewer credits. ")
    assert str(store).startswith(f"blocked by the object store: it is slow, {waits}, so sources get fewer credits. ")
    assert "disk" not in str(store)
