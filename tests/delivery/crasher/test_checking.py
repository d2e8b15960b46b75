"""The crasher detects what it should: repeats, gaps, wrong bytes, and a system that makes no progress."""

import json
from pathlib import Path

import pytest

from tests.delivery.crasher.checking import CopyCheck, TallyCheck
from tests.delivery.crasher.events import ALL, KEYS_A_STREAM, LINES, Line, count_of, key, sum_of_first, text
from tests.delivery.crasher.system import System

FIRST = LINES[0]


def tally(**last: int) -> list[bytes]:
    """All results after these numbers of messages of the first program's streams."""
    lines = [(Line(FIRST.program, stream), number) for stream, number in last.items()]
    rows = [
        {"key": f"{line}/{residue}", "count": count, "sum": sum_of_first(residue, count)}
        for line, number in lines
        for residue in range(KEYS_A_STREAM)
        if (count := count_of(residue, number))
    ]
    rows.append({"key": ALL, "count": sum(last.values()), "sum": 0})
    return [json.dumps(row).encode() for row in rows]


def test_the_formula_agrees_with_counting() -> None:
    for last in range(20):
        numbers = range(1, last + 1)
        for residue in range(KEYS_A_STREAM):
            mine = [number for number in numbers if key(FIRST, number) == f"{FIRST}/{residue}"]
            assert count_of(residue, last) == len(mine)
            assert sum_of_first(residue, len(mine)) == sum(mine)


def test_a_copy_may_interleave_streams_but_not_reorder_one() -> None:
    check = CopyCheck()
    check.take([text(LINES[0], 1), text(LINES[3], 1), text(LINES[0], 2)], 1)
    check.take([text(LINES[3], 2)], 2)
    assert check.positions == {LINES[0]: 2, LINES[1]: 0, LINES[2]: 0, LINES[3]: 2}


@pytest.mark.parametrize(
    "wrong", [text(FIRST, 1), text(FIRST, 2), text(FIRST, 4), text(FIRST, 3) + b".", b"east/a:1:."], ids=str
)
def test_a_copy_that_repeats_omits_or_changes_a_message_is_detected(wrong: bytes) -> None:
    check = CopyCheck()
    check.take([text(FIRST, 1), text(FIRST, 2)], 1)
    with pytest.raises(AssertionError):
        check.take([wrong], 2)


def test_a_tally_grows_and_an_epoch_without_messages_repeats_it() -> None:
    check = TallyCheck()
    check.take(tally(a=4, b=1), 2)
    check.take(tally(a=4, b=1) + tally(a=5, b=9), 4)
    assert check.positions[FIRST] == 5


@pytest.mark.parametrize(
    ("lines", "epoch"),
    [
        pytest.param(tally(a=4, b=1), 2, id="an epoch twice"),
        pytest.param(tally(a=6, b=1), 4, id="an epoch omitted"),
        pytest.param(tally(a=3, b=1), 3, id="a step back"),
        pytest.param(tally(a=6, b=1)[1:], 3, id="not a prefix"),
        pytest.param([line.replace(b'"sum": 9', b'"sum": 8') for line in tally(a=6, b=1)], 3, id="a wrong sum"),
    ],
)
def test_a_tally_that_is_not_the_next_one_is_detected(lines: list[bytes], epoch: int) -> None:
    check = TallyCheck()
    check.take(tally(a=4, b=1), 2)
    with pytest.raises(AssertionError):
        check.take(lines, epoch)


def test_a_system_that_makes_no_progress_fails_with_the_output_of_every_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    system = System(tmp_path, "copy", messages=1, rate=1.0)
    (tmp_path / "driver.log").write_text("I wait for somebody.")
    system.look()
    monkeypatch.setattr("tests.delivery.crasher.system.STUCK_SECONDS", 0.0)
    with pytest.raises(AssertionError, match=r"nothing has moved(.|\n)*I wait for somebody"):
        system.look()
