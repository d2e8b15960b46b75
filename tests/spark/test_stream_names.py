"""Names of streams: each is requested once, however many rows there are."""

from collections.abc import Sequence

import numpy as np
import pytest

from penstock.core.errors import Unavailable
from penstock.spark import python_worker
from penstock.spark.source import arrow
from penstock.spark.source.arrow import StreamNames


class Asked:
    def __init__(self) -> None:
        self.ids: list[int] = []
        self.requests = 0

    def __call__(self, ids: Sequence[int]) -> list[str]:
        self.ids += ids
        self.requests += 1
        return [f"n{number}" if number % 10 else "" for number in ids]


def test_each_id_is_requested_once_and_each_row_gets_its_name() -> None:
    asked = Asked()
    names = StreamNames(asked)
    rng = np.random.default_rng(5)
    for _ in range(20):
        ids = rng.integers(-50, 50, 200)
        expected = [f"n{number}" if (number := i % 2**64) % 10 else None for i in map(int, ids)]
        assert names.of(ids).to_pylist() == expected
    assert len(asked.ids) == len(set(asked.ids)) == len(names) == 100
    assert all(0 <= number < 2**64 for number in asked.ids)
    assert asked.requests < 20


@pytest.mark.parametrize("number", [3, 10, -1])
def test_a_batch_of_one_stream_has_a_column_of_one_name(number: int) -> None:
    names = StreamNames(Asked())
    for _ in range(2):
        column = names.of(np.full(1000, number))
        assert len(column) == 1000
        assert set(column.to_pylist()) == {None if number == 10 else f"n{number % 2**64}"}
        assert str(column.type) == "string"


def test_many_ids_are_looked_up_in_several_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrow, "ASK_MAX", 7)
    asked = Asked()
    assert len(StreamNames(asked).of(np.arange(20))) == 20
    assert asked.requests == 3


def test_the_cache_of_names_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrow, "STREAMS_MAX", 10)
    asked = Asked()
    names = StreamNames(asked)
    for start in (0, 6, 3, 0):
        ids = np.arange(start, start + 6)
        assert names.of(ids).to_pylist() == [f"n{i}" if i % 10 else None for i in range(start, start + 6)]
        assert len(names) <= 10


class Moved:
    """Coordinators by address: the first one is gone, and `home` knows the second one."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def __call__(self, worker: str, _: float = 0.0) -> "_At":
        return _At(self, worker)


class _At:
    def __init__(self, moved: Moved, worker: str) -> None:
        self._moved = moved
        self._worker = worker

    def stream_names(self, connector: str, ids: Sequence[int]) -> list[str]:
        self._moved.asked.append(self._worker)
        if self._worker == "gone":
            raise Unavailable("connection refused")
        return [f"{connector} {number}" for number in ids]

    def places(self, segments: Sequence[str]) -> dict[str, str]:
        assert self._worker == "home"
        return dict.fromkeys(segments, "next")


def test_names_are_asked_for_where_a_shard_has_moved_to(monkeypatch: pytest.MonkeyPatch) -> None:
    moved = Moved()
    for module in (arrow, python_worker):
        monkeypatch.setattr(module, "coordinator", moved)
    names = arrow.stream_names("gone", "orders", "home", "connector/orders/0")
    assert names.of(np.array([7])).to_pylist() == ["orders 7"]
    assert names.of(np.array([8])).to_pylist() == ["orders 8"]
    assert moved.asked == ["gone", "next", "next"]
