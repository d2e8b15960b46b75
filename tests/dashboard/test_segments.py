"""The events of a segment, on its page."""

import pytest

from penstock.client.segments import SegmentClient
from penstock.core.errors import RequestError
from penstock.dashboard.look_pages import events_at
from tests.support.running_worker import RunningWorker


def test_a_segment_whose_first_events_were_removed_is_read_from_its_start(worker: RunningWorker) -> None:
    with SegmentClient(worker.address) as client:
        client.create("numbers")
        with client.appender("numbers") as appender:
            for number in range(4):
                appender.append(b"%d" % number)
        events = [*client.events("numbers")]
        client.truncate("numbers", events[2].offset)
        for wanted in (None, 0, events[1].offset, events[2].offset):
            start, found = events_at(client, "numbers", wanted)
            assert (start, [one.value for one in found]) == (events[2].offset, [b"2", b"3"])
        assert events_at(client, "numbers", events[3].offset)[0] == events[3].offset
        with pytest.raises(RequestError, match=f"has the offsets {events[2].offset} to {events[3].end}"):
            events_at(client, "numbers", events[3].end + 1)
