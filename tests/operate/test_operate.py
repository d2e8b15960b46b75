"""A short form of `script/test --campaign operate`: some cells of each of its tables."""

from pathlib import Path

import pytest

from tests.operate import disk, reads, small_disks
from tests.operate.restores import Cell, cells, expected, made_history, run_cell
from tests.support.small_disks import directory_for_images

pytestmark = [pytest.mark.process, pytest.mark.slow]

RESTORES = {
    "stored": ("111s", "121s", "112s", "211s", "221s", "021s"),
    "removed": ("212r", "221r"),
}

FAULTS = [("new", 2), ("running", 3), ("running", 20), ("restarted", 10)]
READS = [("running", 7), ("running", 16), ("restarted", 1)]


def test_every_order_of_worker_sink_and_checkpoint_is_a_cell() -> None:
    def order(cell: Cell) -> tuple[object, ...]:
        parts = cell[:3]
        return (*(a < b for a in parts for b in parts), *(not a for a in parts), cell.removed)

    every = {order(Cell(a, b, c, r)) for a in range(4) for b in range(4) for c in range(4) for r in (False, True)}
    assert {order(cell) for cell in cells()} == every
    assert len(cells()) == len(every)


@pytest.mark.parametrize("data", RESTORES)
def test_parts_of_different_times_continue_exactly_or_are_refused_with_what_to_do(data: str, tmp_path: Path) -> None:
    with made_history(tmp_path, removed=data == "removed", kinds=("file", "sqlite", "program")) as history:
        for cell in map(Cell.parse, RESTORES[data]):
            wanted = expected(cell, history.first_stored[cell.worker])
            assert run_cell(history, cell) == dict.fromkeys(history.places, wanted), cell


@pytest.mark.parametrize(("step", "number"), FAULTS)
def test_a_worker_continues_after_a_full_disk(step: str, number: int, tmp_path: Path) -> None:
    assert disk.run_cell(tmp_path, step, number) is not None


@pytest.mark.parametrize("step", ["delivery", "backup"])
def test_everything_completes_after_a_real_disk_was_full(
    step: str, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    directory_for_images(tmp_path_factory)
    small_disks.run_cell(tmp_path, step)


@pytest.mark.parametrize(("step", "number"), READS)
def test_a_worker_continues_after_a_read_that_failed(step: str, number: int, tmp_path: Path) -> None:
    assert reads.run_cell(tmp_path, step, number) is not None
