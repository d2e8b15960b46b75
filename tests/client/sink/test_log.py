"""The transaction log: what it remembers, how its tail may be torn, and what is damage instead."""

import errno
from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.client.sink import log, read_committed
from penstock.client.sink.log import (
    ENDED_MAX,
    HEADER,
    LOG,
    LOG_BYTES,
    MAGIC,
    NEW_LOG,
    Aborted,
    Applied,
    Bound,
    Committed,
    Ended,
    LogState,
    Record,
    Refused,
    TransactionLog,
    Voted,
    decode_records,
    encode_record,
    open_log,
)
from penstock.client.sink.participant import Transaction
from penstock.core.errors import Damaged, RequestError, UnreadableFormat
from penstock.testing.faulty_files import FaultyFiles
from penstock.testing.memory_files import MemoryFiles

ROUND: list[Record] = [
    Bound("orders"),
    Voted(b"1", 0, 10, 12),
    Committed(b"1"),
    Applied(b"1"),
    Refused(b"2:1"),
    Voted(b"2:2", 10, 20, 24),
    Aborted(b"2:2"),
    Voted(b"2:3", 10, 20, 24),
]
IN_DOUBT = LogState(
    "orders",
    Voted(b"1", 0, 10, 12),
    True,
    Voted(b"2:3", 10, 20, 24),
    (Ended(b"1", True), Ended(b"2:1", False), Ended(b"2:2", False)),
)

records = st.one_of(
    st.builds(Bound, st.text()),
    st.builds(Voted, st.binary(max_size=1024), *[st.integers(0, 2**64 - 1)] * 3),
    *[st.builds(kind, st.binary(max_size=1024)) for kind in (Refused, Committed, Aborted, Applied)],
    st.builds(
        LogState,
        st.none() | st.text(),
        st.none() | st.builds(Voted, st.binary(), *[st.integers(0, 2**64 - 1)] * 3),
        st.booleans(),
        st.none() | st.builds(Voted, st.binary(), *[st.integers(0, 2**64 - 1)] * 3),
        st.lists(st.builds(Ended, st.binary(), st.booleans())).map(tuple),
    ),
)


def log_with(*appended: Record) -> MemoryFiles:
    """The files of a log that is closed again."""
    files = MemoryFiles()
    log = TransactionLog(files)
    for record in appended:
        log.append(record)
    log.close()
    return files


def content(files: MemoryFiles) -> bytes:
    file = files.open(LOG)
    return file.read(0, file.size())


def replace(files: MemoryFiles, data: bytes) -> None:
    files.remove(LOG)
    files.create(LOG).write(0, (data,))


def state_of(files: MemoryFiles) -> LogState:
    log = TransactionLog(files)
    log.close()
    return log.state


def ends_of(data: bytes) -> list[int]:
    """Where each record ends."""
    ends, at = [], 0
    while data[at : at + 4] == MAGIC:
        at += HEADER.size + HEADER.unpack_from(data, at)[1]
        ends.append(at)
    return ends


@pytest.mark.slow
@given(st.lists(records, min_size=1, max_size=5), st.integers(0, 2**32))
def test_records_come_back_as_they_were(given_records: list[Record], number: int) -> None:
    data = b"".join(encode_record(number + n, number, record) for n, record in enumerate(given_records))
    assert list(decode_records(data + bytes(100))) == list(enumerate(given_records, number))


def test_a_record_has_exactly_these_bytes() -> None:
    expected = "50534e4b 0000000c 00000000 00000003 00000000 00000002 74aef200 9502c405 703a313a 31000506"
    assert encode_record(3, 2, Voted(b"p:1:1", 0, 5, 6)).hex(" ", 4) == expected


def test_a_log_remembers_its_entries_over_any_number_of_runs() -> None:
    files = MemoryFiles()
    for record in ROUND:
        log = TransactionLog(files)
        log.append(record)
        log.close()
    assert state_of(files) == IN_DOUBT


def test_an_empty_log_knows_nothing() -> None:
    assert state_of(MemoryFiles()) == LogState()
    assert LogState().offset == LogState().mark == 0


def test_a_tail_that_was_not_written_wholly_is_cut_at_every_byte() -> None:
    files = log_with(*ROUND)
    data = content(files)
    ends = ends_of(data)
    expected = LogState()
    for start, end, record in zip(ends[:-1], ends[1:], ROUND, strict=True):
        for cut in (start, start + 1, start + HEADER.size, end - 1):
            replace(files, data[:cut] + bytes(LOG_BYTES - cut))
            assert state_of(files) == expected
            replace(files, data[:cut])
            assert state_of(files) == expected
        expected = expected.after(record)


def test_after_a_torn_tail_the_log_continues() -> None:
    files = log_with(*ROUND)
    data = content(files)
    replace(files, data[: ends_of(data)[-1] - 1])
    log = TransactionLog(files)
    assert log.state.in_doubt is None
    log.append(Voted(b"3", 10, 30, 40))
    log.close()
    assert state_of(files).in_doubt == Voted(b"3", 10, 30, 40)


def test_any_flipped_bit_before_the_last_record_is_damage() -> None:
    files = log_with(*ROUND)
    data = content(files)
    random = Random(0)
    for end in ends_of(data)[:-1]:
        flipped = bytearray(data)
        flipped[end - 1 - random.randrange(10)] ^= 1 << random.randrange(8)
        replace(files, bytes(flipped))
        with pytest.raises(Damaged, match="transaction log: offset") as raised:
            TransactionLog(files)
        assert "Restore" in raised.value.hint


def test_damage_leaves_the_log_as_it_is_and_free() -> None:
    files = log_with(*ROUND)
    flipped = b"X" + content(files)[1:]
    replace(files, flipped)
    for _ in range(2):
        with pytest.raises(Damaged, match="not the beginning of a sink's transaction log"):
            TransactionLog(files)
    assert content(files) == flipped


def test_an_impossible_record_is_damage() -> None:
    files = log_with()
    data = content(files)
    end = ends_of(data)[0]
    replace(files, data[:end] + encode_record(1, 1, Committed(b"1")))
    with pytest.raises(Damaged, match="cannot follow"):
        TransactionLog(files)


@pytest.mark.parametrize(
    ("other", "told"),
    [
        (1, r"a development version before 0\.1 \(format 1; this version reads format 2\)"),
        (3, r"a newer version of Penstock \(format 3; this version reads format 2\)"),
    ],
)
def test_a_format_of_another_version_is_not_read(monkeypatch: pytest.MonkeyPatch, other: int, told: str) -> None:
    files = MemoryFiles()
    with monkeypatch.context() as then:
        then.setattr(log, "FORMAT", other)
        files.create(LOG).write(0, (encode_record(0, 0, LogState()),))
    with pytest.raises(UnreadableFormat, match=f"the transaction log of the sink was written by {told}") as refused:
        TransactionLog(files)
    assert refused.value.hint


def test_a_record_that_was_not_synced_may_be_torn_before_one_that_was_not_either() -> None:
    """The next vote is on its way to the disk with the note that the last commit was applied: either may get there."""
    files = MemoryFiles()
    log = TransactionLog(files)
    log.append(Voted(b"1", 0, 1, 1))
    log.append(Committed(b"1"))
    log.append_lazily(Applied(b"1"))
    log.append(Voted(b"2", 1, 2, 2))
    log.close()
    data = bytearray(content(files))
    end_of_committed, end_of_applied = ends_of(bytes(data))[2:4]
    data[end_of_committed:end_of_applied] = bytes(end_of_applied - end_of_committed)
    replace(files, bytes(data))
    assert state_of(files) == LogState(None, Voted(b"1", 0, 1, 1), False, None, (Ended(b"1", True),))


def test_the_file_is_rewritten_when_it_is_full_and_never_grows() -> None:
    files = MemoryFiles()
    log = TransactionLog(files)
    for number in range(3000):
        if not log.has_room:
            log.make_room()
        txn_id = b"%0100d" % number
        log.append(Voted(txn_id, number, number + 1, number + 1))
        log.append(Committed(txn_id))
        log.append_lazily(Applied(txn_id))
    log.close()
    assert files.open(LOG).size() == LOG_BYTES
    state = state_of(files)
    assert state.offset == 3000
    assert [int(ended.txn_id) for ended in state.ended] == list(range(3000 - ENDED_MAX, 3000))
    assert files.list() == [LOG]


def test_on_a_full_disk_a_round_can_be_brought_to_its_end() -> None:
    files = FaultyFiles(space=2 * LOG_BYTES)
    log = TransactionLog(files)
    files.create("other").allocate(LOG_BYTES)
    log.append(Voted(b"1", 0, 1, 1))
    with pytest.raises(OSError, match="space") as raised:
        log.make_room()
    assert raised.value.errno == errno.ENOSPC
    log.append(Committed(b"1"))
    log.close()
    files.remove("other")
    following = TransactionLog(files.restart())
    assert following.state.offset == 1


def test_a_vote_after_a_rename_whose_directory_sync_failed_survives_the_end_of_the_process() -> None:
    files = FaultyFiles()
    log = TransactionLog(files)
    files.fail_next_directory_sync()
    with pytest.raises(OSError, match="space"):
        log.make_room()
    log.append(Voted(b"1", 0, 1, 1))
    assert TransactionLog(files.restart()).state.in_doubt == Voted(b"1", 0, 1, 1)


@pytest.mark.parametrize("seed", range(20))
def test_a_vote_after_a_rename_whose_directory_sync_failed_survives_a_power_cut(seed: int) -> None:
    files = FaultyFiles(seed)
    log = TransactionLog(files)
    log.append(Bound("orders"))
    files.fail_next_directory_sync(2)
    with pytest.raises(OSError, match="space"):
        log.make_room()
    assert not log.has_room, "a power cut could bring the old file back"
    with pytest.raises(OSError, match="space"):
        log.append(Voted(b"1", 0, 1, 1))
    log.append(Voted(b"1", 0, 1, 1))
    assert TransactionLog(files.crash()).state == LogState("orders", None, True, Voted(b"1", 0, 1, 1))


def test_leftovers_of_an_interrupted_rewrite_do_no_harm() -> None:
    files = log_with(*ROUND)
    files.create(NEW_LOG).write(0, (b"half of a state",))
    assert state_of(files) == IN_DOUBT


def test_read_committed_reads_while_the_sink_runs_and_changes_nothing(tmp_path: Path) -> None:
    directory = tmp_path / "state"
    with pytest.raises(RequestError, match=r"state directory .* not found"):
        read_committed(directory)
    log = open_log(directory)
    before = read_committed(directory)
    assert (before.offset, before.size, before.transaction) == (0, 0, None)
    for record in ROUND:
        log.append(record)
    found = read_committed(directory)
    assert (found.offset, found.size, found.transaction) == (10, 12, Transaction(b"1", 0, 10))
    log.append(Committed(b"2:3"))
    assert read_committed(directory).size == 24
    log.close()
    assert sorted(path.name for path in directory.iterdir()) == ["lock", "log"]
