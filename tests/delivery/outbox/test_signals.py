"""Signals to sinks when they fail and when links change, and signals of sinks that are not per stream."""

from penstock.connectors.api import StreamRef
from penstock.protocol.api.deployment import BreakerSpec
from tests.delivery.outbox.scene import A, SinkScene


async def test_a_stream_that_cannot_be_announced_to_a_sink_is_closed_and_announced_again(scene: SinkScene) -> None:
    x = await scene.add("x")
    tries: list[StreamRef] = []

    def on_started(stream: StreamRef) -> Exception | None:
        tries.append(stream)
        return OSError("connection refused") if len(tries) < 3 else None

    x.on_started = on_started
    scene.signals.relink("src", ["x"])
    scene.signals.started(A)
    await scene.until(lambda: scene.signals.may_send(A))
    assert tries == [A, A, A]


async def test_a_sink_that_is_not_per_stream_is_closed_as_a_whole_while_delivery_waits_for_it(
    scene: SinkScene,
) -> None:
    scene.breakers.configure("file", BreakerSpec(), per_stream=False, is_passing=True)
    scene.signals.relink("src", ["file"])
    scene.signals.started(A)
    assert scene.signals.may_send(A), "it has opened every stream there will be"
    scene.signals.set_waiting("file", "p", "file", "the disk is full")
    assert scene.signals.why(A) == "sink file: the disk is full"
    scene.signals.set_waiting("file", "q", "file", "there too")
    scene.signals.set_waiting("file", "p", "file", None)
    assert not scene.signals.may_send(A)
    scene.signals.set_waiting("file", "q", "file", None)
    assert scene.signals.may_send(A)


async def test_an_unlinked_sink_is_notified_of_the_end_of_its_streams_and_of_their_start_when_it_is_linked_again(
    scene: SinkScene,
) -> None:
    x, y = await scene.add("x"), await scene.add("y")
    scene.signals.relink("src", ["x", "y"])
    scene.signals.started(A)
    await scene.until(lambda: scene.signals.may_send(A))
    scene.signals.relink("src", ["y"])
    assert scene.signals.may_send(A)
    await scene.until(lambda: x.what(A) == ["started", "closed"])
    scene.signals.relink("src", ["x", "y"])
    await scene.until(lambda: scene.signals.may_send(A))
    assert x.what(A) == ["started", "closed", "started"]
    assert y.what(A) == ["started"]


async def test_links_that_change_back_at_once_leave_no_stream_behind(scene: SinkScene) -> None:
    x = await scene.add("x")
    scene.signals.relink("src", ["x"])
    scene.signals.started(A)
    await scene.until(lambda: scene.signals.may_send(A))
    scene.signals.relink("src", [])
    scene.signals.relink("src", ["x"])
    assert not scene.signals.may_send(A)
    await scene.until(lambda: scene.signals.may_send(A))
    assert x.what(A) == ["started", "closed", "started"]
