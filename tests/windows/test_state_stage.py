"""Blobs of any size are stored in Spark's state in parts of bounded size."""

from typing import Any

import pytest

from penstock.windows import stages as states
from penstock.windows.stages import SparkState


class Handle:
    """Like Spark's, with state in a dict."""

    def __init__(self) -> None:
        self.value: Any = None
        self.map: dict[tuple[int, int], tuple[bytes]] = {}

    def getValueState(self, name: str, schema: str) -> "Handle":  # noqa: N802
        return self

    def getMapState(self, name: str, key_schema: str, value_schema: str) -> "Handle":  # noqa: N802
        return self

    def get(self) -> Any:
        return self.value

    def update(self, value: Any) -> None:
        self.value = value

    def getValue(self, key: tuple[int, int]) -> tuple[bytes] | None:  # noqa: N802
        return self.map.get(key)

    def updateValue(self, key: tuple[int, int], value: tuple[bytes]) -> None:  # noqa: N802
        assert len(value[0]) <= states.PART_BYTES + 4
        self.map[key] = value

    def containsKey(self, key: tuple[int, int]) -> bool:  # noqa: N802
        return key in self.map

    def removeKey(self, key: tuple[int, int]) -> None:  # noqa: N802
        del self.map[key]


@pytest.fixture
def handle(monkeypatch: pytest.MonkeyPatch) -> Handle:
    monkeypatch.setattr(states, "PART_BYTES", 10)
    return Handle()


def test_a_new_bucket_is_empty(handle: Handle) -> None:
    state = SparkState(handle)  # type: ignore[arg-type]
    assert (state.index(), state.get(7)) == (None, None)
    state.put_index(b"index")
    assert state.index() == b"index"


@pytest.mark.parametrize("size", [0, 1, 9, 10, 11, 20, 21, 95])
def test_a_stored_blob_is_read_back(handle: Handle, size: int) -> None:
    state = SparkState(handle)  # type: ignore[arg-type]
    data = bytes(range(size))
    state.put(-5, data)
    state.put(7, b"other")
    assert (state.get(-5), state.get(7)) == (data, b"other")
    state.remove(-5)
    assert state.get(-5) is None
    assert [*handle.map] == [(7, 0)], "no part is left behind"


def test_a_shorter_blob_leaves_no_part_of_a_longer_one(handle: Handle) -> None:
    state = SparkState(handle)  # type: ignore[arg-type]
    for size in (95, 15, 40, 0):
        state.put(1, bytes(size))
        assert state.get(1) == bytes(size)
        assert len(handle.map) == max(1, -(-size // 10))
