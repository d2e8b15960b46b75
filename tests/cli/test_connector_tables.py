"""Which stream is blocked, and why, in sentences."""

from typing import Any

from penstock.cli.overview import stream_troubles
from penstock.protocol.api.status import BlockedStream, ConnectorStatus, TrippedStream


def sentences(**more: Any) -> list[str]:
    plain = dict.fromkeys(("name", "id", "instance", "type", "state", "reason"), "")
    return stream_troubles([ConnectorStatus(**plain | more)])


def test_a_source_reports_who_keeps_its_streams() -> None:
    blocked = BlockedStream(stream_id=7, stream="'north' (#7)", why="sink ill: connection refused")
    assert sentences(name="shops", blocked_streams=[blocked], blocked_count=3) == [
        "stream 'north' (#7) of shops is blocked: sink ill: connection refused",
        "and 2 more streams of shops",
    ]


def test_a_sink_reports_which_streams_it_has_closed_also_of_sources_that_have_ended() -> None:
    tripped = TrippedStream(connector="shops", stream_id=7, why="reset by peer")
    assert sentences(name="ill", tripped_streams=[tripped], tripped_count=2) == [
        "connector ill's breaker for stream #7 of shops is tripped: reset by peer",
        "connector ill's breakers are tripped for 1 more streams",
    ]
