"""A scan finds every record, and continues after bytes that are not one."""

from penstock.core.types import Position
from penstock.store.chapters import chapter_name, file_offset
from penstock.store.record import Entry, Flaw, scan
from penstock.testing.faulty_files import FaultyFiles
from tests.store.small import commit, entries, flip, open_store


def store_with_three_appends() -> tuple[FaultyFiles, list[Entry]]:
    files = FaultyFiles()
    store = open_store(files)
    store.create("a")
    for letter in b"xyz":
        store.append("a", [bytes([letter]) * 100])
    commit(store)
    return files, entries(store)


def found(files: FaultyFiles) -> list[Entry | Flaw]:
    base = Position(0)
    return list(scan(files.open(chapter_name(base)), base, 0, "the file"))


def test_the_scan_ends_where_only_zeros_follow() -> None:
    files, written = store_with_three_appends()
    assert found(files) == written


def test_damaged_data_leave_the_record_header_readable() -> None:
    files, written = store_with_three_appends()
    flip(files, Position(0), written[-2].header.data_position + 50)
    assert found(files) == [*written[:-2], written[-2]._replace(sound=False), written[-1]]


def test_a_damaged_header_costs_one_record() -> None:
    files, written = store_with_three_appends()
    flip(files, Position(0), written[-2].position + 20)
    assert found(files) == [*written[:-2], Flaw(written[-2].position, written[-2].end), written[-1]]


def test_damage_at_the_end_extends_to_the_last_nonzero_byte() -> None:
    files, written = store_with_three_appends()
    flip(files, Position(0), written[-1].position)
    assert found(files)[-1] == Flaw(written[-1].position, written[-1].end)


def test_a_stale_record_after_a_cut_is_not_mistaken_for_the_next_one() -> None:
    files, written = store_with_three_appends()
    file = files.open(chapter_name(Position(0)))
    stale = written[-1]
    size = stale.end - stale.position
    file.write(
        file_offset(Position(0), written[-2].position),
        [file.read(file_offset(Position(0), written[-2].position), 4), bytes(36)],
    )
    assert isinstance(found(files)[-2], Flaw)
    other, _ = store_with_three_appends()
    shifted = other.open(chapter_name(Position(0)))
    shifted.write(file_offset(Position(0), stale.end), [shifted.read(file_offset(Position(0), stale.position), size)])
    assert found(other)[-1] == Flaw(stale.end, Position(stale.end + size))


def test_data_full_of_magic_numbers_are_scanned_in_one_pass() -> None:
    files = FaultyFiles()
    store = open_store(files, chapter_bytes=1 << 20, append_bytes_max=1 << 20)
    store.create("a")
    store.append("a", [b"PREC" * 100_000])
    store.append("a", [b"x"])
    commit(store)
    written = entries(store)
    flip(files, Position(0), written[-2].position)
    before = files.operations
    assert found(files)[-2:] == [Flaw(written[-2].position, written[-2].end), written[-1]]
    assert files.operations - before < 20
