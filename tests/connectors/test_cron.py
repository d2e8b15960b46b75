"""`cron`: times of an expression in a time zone, each once."""

import json
from datetime import UTC, datetime
from itertools import islice, pairwise
from zoneinfo import ZoneInfo

import pytest
from pydantic import ValidationError

from penstock.connectors.cron import Cron, CronOptions
from tests.connectors.recording_host import RecordingHost, running
from tests.support.waiting import eventually

START = int(datetime(2026, 1, 31, 12, tzinfo=UTC).timestamp())


def made(expression: str, now: float = START, **options: str) -> Cron:
    connector = Cron(CronOptions.model_validate({"expression": expression, **options}))
    connector.clock = lambda: now
    return connector


def written(connector: Cron, since: datetime, count: int) -> list[str]:
    zone = ZoneInfo(connector.options.timezone)
    times = islice(connector.times_after(int(since.timestamp())), count)
    return [datetime.fromtimestamp(at, zone).strftime("%d.%m. %H:%M %z") for at in times]


def test_times_are_those_of_the_time_zone_when_clocks_change() -> None:
    daily = made("30 2 * * *", timezone="Europe/Berlin")
    spring, autumn = datetime(2026, 3, 28, tzinfo=UTC), datetime(2026, 10, 24, tzinfo=UTC)
    assert written(daily, spring, 3) == ["28.03. 02:30 +0100", "29.03. 03:00 +0200", "30.03. 02:30 +0200"]
    assert written(daily, autumn, 3) == ["24.10. 02:30 +0200", "25.10. 02:30 +0200", "26.10. 02:30 +0100"]


def test_an_expression_with_seconds_never_goes_back_when_clocks_do() -> None:
    often = made("0 */30 * * * *", timezone="Europe/Berlin")
    times = [*islice(often.times_after(int(datetime(2026, 10, 24, 23, tzinfo=UTC).timestamp())), 12)]
    assert [later - earlier for earlier, later in pairwise(times)] == [1800] * 11


async def test_an_event_has_its_time_as_id_and_event_time() -> None:
    host = RecordingHost()
    async with running(made("* * * * *", now=START), host):
        assert host.streams[0].events == []
    connector = made("* * * * *", now=START)
    host = RecordingHost()
    ticking = iter([START, *[START + 61.0] * 100])
    connector.clock = lambda: next(ticking, START + 61.0)
    async with running(connector, host):
        await eventually(lambda: host.streams[0].events)
    assert host.streams[0].ids == [START + 60]
    assert json.loads(host.streams[0].events[0]) == {
        "at": "2026-01-31T12:01:00+00:00",
        "at_us": (START + 60) * 1_000_000,
    }


@pytest.mark.parametrize(
    ("missed", "expected"), [("skip", []), ("catch_up", [*range(START - 540, START + 1, 60)])], ids=["skip", "catch_up"]
)
async def test_times_that_were_missed_are_left_out_or_sent_now(missed: str, expected: list[int]) -> None:
    host = RecordingHost()
    stream = await host.open_stream("before")
    stream.last_id = START - 600

    async def open_stream(name: str, **_: object) -> object:
        return stream

    host.open_stream = open_stream  # type: ignore[method-assign, assignment]
    async with running(made("* * * * *", missed=missed), host):
        await eventually(lambda: stream.ids == expected)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"expression": "61 * * * *"}, "not a valid cron expression: Bad minute"),
        ({"expression": "* * *"}, "not a valid cron expression: Wrong number of fields"),
        ({"expression": "0 0 30 2 *"}, "not a valid cron expression: Bad day-of-month"),
        ({"expression": "* * * * *", "timezone": "Mars/Olympus"}, "the time zone is not known here"),
        ({"expression": "* * * * *", "timezone": "../etc/passwd"}, "the time zone is not known here"),
    ],
)
def test_what_is_not_a_time_is_refused(options: dict[str, str], reason: str) -> None:
    with pytest.raises(ValidationError, match=reason):
        CronOptions.model_validate(options)
