"""The events of `script/bench pipeline`, their count, and what a wrong result leads to."""

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from bench.harness import BenchmarkFailed
from bench.pipeline_flow import BEGAN_MS, Events, Part, check, key_name, last_of_all
from penstock.client.sink.log import Applied, Bound, Committed, Voted, open_log

EVENTS = Events(count=200, keys=7, per_ms=1)
LONG = Events(count=1000, keys=7, per_ms=1)


def test_the_count_is_that_of_events_taken_one_by_one() -> None:
    events = Events(count=130_000, keys=3, per_ms=1)
    cells = Counter((BEGAN_MS + n // 60_000 * 60_000, key_name(n * 48_271 % 65_521 % 3)) for n in range(events.count))
    assert events.lines() == sorted(f"{minute},{key},{count}".encode() for (minute, key), count in cells.items())
    assert events.counts().shape == (3, 3)


def test_a_minute_begins_with_the_first_event() -> None:
    assert BEGAN_MS % 60_000 == 0
    assert EVENTS.end_ms == BEGAN_MS + 60_000
    assert Events(60_000, 1, 1).end_ms == BEGAN_MS + 60_000
    assert Events(60_001, 1, 1).end_ms == BEGAN_MS + 120_000


def test_batches_hold_every_event_once_in_order() -> None:
    batches = list(Part(LONG, 100, 1000).batches(128))
    together = np.concatenate(batches)
    assert together["id"].tolist() == list(range(100, 1000))
    assert together["time"].tolist() == [BEGAN_MS + n for n in range(100, 1000)]
    assert together["key"][5] == key_name(105 * 48_271 % 65_521 % 7).encode()
    assert max(map(len, batches)) == 128


def test_the_last_event_ends_all_minutes() -> None:
    later = np.frombuffer(last_of_all(EVENTS, 0), next(Part(EVENTS, 0, 1).batches(1)).dtype)
    assert later["time"][0] > EVENTS.end_ms + 60_000
    assert later["id"][0] == EVENTS.count


def committed(folder: Path, lines: list[bytes]) -> Path:
    """A file sink's directory that has committed these lines."""
    data = b"".join(line + b"\n" for line in lines)
    folder.mkdir()
    (folder / f"part-{0:020d}.txt").write_bytes(data + b"what is not committed\n")
    log = open_log(folder / "state")
    for entry in (Bound("delivery"), Voted(b"1", 0, len(data), len(data)), Committed(b"1"), Applied(b"1")):
        log.append(entry)
    log.close()
    return folder


def test_results_that_are_the_count_pass(tmp_path: Path) -> None:
    check(committed(tmp_path / "sink", EVENTS.lines()[::-1]), EVENTS.lines())


@pytest.mark.parametrize("change", [lambda lines: lines[1:], lambda lines: [*lines, lines[0]], lambda lines: [b"x"]])
def test_results_that_are_missing_twice_or_wrong_fail(change, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(BenchmarkFailed, match="the sink has committed"):
        check(committed(tmp_path / "sink", change(EVENTS.lines())), EVENTS.lines())
