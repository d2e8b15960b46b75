"""A table as a log of entries."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.errors import Damaged
from penstock.protocol.segment import ANY_VERSION, NO_VERSION, TableEntry, TableKey
from penstock.segment_server import table as tables
from penstock.segment_server.table import BadVersion, KeyMissing, Table


class Log:
    """A table and the bytes that it was made of."""

    def __init__(self) -> None:
        self.table = Table()
        self.data = b""
        self.start = 0

    @property
    def end(self) -> int:
        return self.start + len(self.data)

    def put(self, *entries: tuple[bytes, bytes], version: int = ANY_VERSION) -> tuple[int, ...]:
        given_ = [TableEntry(key, version, value) for key, value in entries]
        data, versions = self.table.update(given_, self.end)
        self._append(data)
        return versions

    def remove(self, *keys: bytes, version: int = ANY_VERSION) -> None:
        self._append(self.table.removal([TableKey(key, version) for key in keys]))

    def compact(self) -> None:
        data = b"".join(self.table.compacted(50))
        self.start, self.data = self.end, data
        self.table = self.opened()

    def _append(self, data: bytes) -> None:
        self.table.replay(data, self.end)
        self.data += data

    def opened(self) -> Table:
        table = Table()
        table.replay(self.data, self.start)
        return table

    def delta(self, position: int) -> list[tuple[bytes, bytes, int]]:
        return [(e.key, e.value, e.version) for e in (c.entry for c in self.table.delta(position, self.start, 100))]  # type: ignore[misc]


def content(table: Table) -> dict[bytes, tuple[bytes, int]]:
    return {one.key: (one.value, one.version) for one in table.after(-1)}


def test_the_version_of_an_entry_is_its_offset() -> None:
    log = Log()
    first, second = log.put((b"a", b"1"), (b"b", b"2"))
    assert first == 0
    assert log.end > second > 0
    assert log.put((b"a", b"3"), version=first) == (log.end - (second - first),)


def test_an_update_with_a_wrong_version_changes_nothing() -> None:
    log = Log()
    log.put((b"a", b"1"))
    with pytest.raises(BadVersion, match="version 0, not 5"):
        log.table.update([TableEntry(b"b", NO_VERSION, b"2"), TableEntry(b"a", 5, b"2")], log.end)
    with pytest.raises(KeyMissing):
        log.put((b"b", b"2"), version=5)
    with pytest.raises(BadVersion):
        log.put((b"a", b"2"), version=NO_VERSION)
    assert content(log.table) == {b"a": (b"1", 0)}


def test_of_several_failed_conditions_a_wrong_version_is_reported() -> None:
    log = Log()
    log.put((b"a", b"1"))
    for keys in ((b"a", b"none"), (b"none", b"a")):
        with pytest.raises(BadVersion):
            log.put(*((key, b"2") for key in keys), version=5)


def test_a_key_that_is_several_times_in_an_update_has_one_version_and_its_last_value() -> None:
    log = Log()
    versions = log.put((b"a", b"1"), (b"b", b"2"), (b"a", b"3"))
    assert versions[0] == versions[2]
    assert content(log.table)[b"a"] == (b"3", versions[0])


def test_a_removed_key_does_not_exist() -> None:
    log = Log()
    (version,) = log.put((b"a", b"1"))
    with pytest.raises(BadVersion):
        log.remove(b"a", version=7)
    log.remove(b"a", version=version)
    log.remove(b"a")
    assert log.table.get(b"a") is None
    assert len(log.table) == 0
    with pytest.raises(KeyMissing):
        log.remove(b"a", version=version)


def test_a_reader_that_knew_a_removed_key_learns_of_its_removal_and_a_new_one_does_not() -> None:
    log = Log()
    log.put((b"a", b"1"))
    seen = log.end
    log.put((b"a", b"gone"))
    log.put((b"b", b"2"))
    log.remove(b"a")
    assert log.delta(0) == [(b"b", b"2", log.table.get(b"b").version)]  # type: ignore[union-attr]
    assert log.delta(seen)[-1] == (b"a", b"gone", NO_VERSION)
    assert log.delta(log.end) == []
    log.put((b"a", b"new"), version=NO_VERSION)
    assert [key for key, _, _ in log.delta(0)] == [b"b", b"a"]


def test_compaction_keeps_values_and_versions_and_readers_behind_it_start_over() -> None:
    log = Log()
    for number in range(100):
        log.put((b"a", b"%d" % number))
    log.put((b"b", b"2"))
    before, behind = content(log.table), log.end
    log.compact()
    assert content(log.table) == before
    assert log.start >= behind
    assert log.delta(1) == [(key, value, version) for key, (value, version) in before.items()]


def test_compaction_is_due_when_most_of_the_log_counts_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "COMPACT_BYTES", 1000)
    log = Log()
    log.put((b"a", b"x" * 500))
    assert not log.table.is_compaction_due(len(log.data))
    for _ in range(5):
        log.put((b"a", b"x" * 500))
    assert log.table.is_compaction_due(len(log.data))


@pytest.mark.parametrize("cut", [1, 20])
def test_a_log_that_is_cut_off_is_damaged(cut: int) -> None:
    log = Log()
    log.put((b"a", b"1" * 30))
    with pytest.raises(Damaged):
        Table().replay(log.data[:-cut], 0)


def test_a_reader_behind_a_compaction_learns_of_removals_and_a_new_one_does_not() -> None:
    log = Log()
    log.put((b"a", b"1"))
    log.put((b"long", b"1" * 2000))
    log.put((b"b", b"2"))
    seen = log.end
    log.put((b"a", b"gone"))
    log.remove(b"a", b"long")
    for _ in range(2):
        log.compact()
        assert sorted(one for one in log.delta(seen) if one[2] == NO_VERSION) == [
            (b"a", b"gone", NO_VERSION),
            (b"long", b"", NO_VERSION),
        ]
        assert [key for key, _, _ in log.delta(0)] == [b"b"]
        assert [one.key for one in log.table.after(-1)] == [b"b"]


def test_compaction_keeps_only_so_many_removals_that_it_is_not_due_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "COMPACT_BYTES", 1000)
    log = Log()
    for number in range(100):
        log.put((b"%d" % number, b"x"))
        log.remove(b"%d" % number)
    log.compact()
    assert 0 < len(log.data) <= 250
    assert log.delta(1)[-1] == (b"99", b"x", NO_VERSION)


KEYS = st.sampled_from([b"a", b"b", b"c"])


@given(
    st.lists(
        st.tuples(st.sampled_from(["put", "remove", "compact"]), KEYS, st.binary(max_size=3), st.booleans()),
        max_size=20,
    )
)
def test_a_reader_of_deltas_has_what_the_table_has(steps: list[tuple[str, bytes, bytes, bool]]) -> None:
    """Although it never forgets what it knows, when it is asked to after a compaction."""
    log, seen, position = Log(), dict[bytes, tuple[bytes, int]](), 0
    for step, key, value, is_read in steps:
        match step:
            case "put":
                log.put((key, value))
            case "remove":
                log.remove(key)
            case _:
                log.compact()
        assert content(log.opened()) == content(log.table)
        if not is_read:
            continue
        changes = log.table.delta(position, log.start, 100)
        for change in changes:
            if change.is_removed:
                seen.pop(change.key, None)
            else:
                seen[change.key] = change.value, change.version
            position = change.end
        assert seen == content(log.table)


def test_the_memory_of_removed_keys_counts_until_they_are_compacted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "_REMOVED_MAX", 0)
    log = Log()
    log.put((b"a", b"1"), (b"b", b"2"))
    both = log.table.memory_bytes
    assert log.table.removed_bytes == 0
    log.put((b"a", b"3"))
    assert log.table.memory_bytes == both
    log.remove(b"a")
    assert log.table.memory_bytes == both
    assert log.table.removed_bytes == both // 2
    log.compact()
    assert (log.table.memory_bytes, log.table.removed_bytes) == (both // 2, 0)
