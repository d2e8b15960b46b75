"""Who holds which stream, in sentences."""

from penstock.application.report import ClosedStream, ConnectorStatus, HeldStream
from penstock.cli.status import connector_troubles


def sentences(**more: object) -> list[str]:
    told = {
        **dict.fromkeys(("name", "id", "instance", "type", "state", "reason", "takes"), ""),
        **dict.fromkeys(("streams", "waiting_streams", "closed_count", "events_in", "bytes_in"), 0),
        **dict.fromkeys(("events_out", "dead_letters", "held_bytes"), 0),
        "paused": False,
        "held_streams": [],
        "paused_streams": [],
        "closed_streams": [],
        "guarantee": {},
        **more,
    }
    return connector_troubles([ConnectorStatus(**told).as_json()])  # type: ignore[arg-type]


def test_a_source_says_who_keeps_its_streams() -> None:
    held = HeldStream(stream_id=7, stream="'north' (#7)", why="sink ill: connection refused")
    assert sentences(name="shops", held_streams=[held], waiting_streams=3) == [
        "stream 'north' (#7) of shops waits: sink ill: connection refused",
        "and 2 more streams of shops",
    ]


def test_a_sink_says_which_streams_it_has_closed_also_of_sources_that_have_ended() -> None:
    closed = ClosedStream(connector="shops", stream_id=7, why="reset by peer")
    assert sentences(name="ill", closed_streams=[closed], closed_count=2) == [
        "connector ill has closed stream #7 of shops: reset by peer",
        "connector ill has closed 1 more streams",
    ]


def test_a_sink_that_takes_nothing_says_why_once() -> None:
    assert sentences(name="ill", state="connected", takes="3 of its streams failed") == [
        "connector ill takes nothing: 3 of its streams failed"
    ]
    assert sentences(name="ill", state="disconnected", reason="refused; next try in 1 s", takes="refused") == [
        "connector ill is disconnected: refused; next try in 1 s"
    ]
