"""A receive buffer never overwrites what a view can still see, and copies as little as it can."""

from hypothesis import given
from hypothesis import strategies as st

from penstock.protocol.segment.decoder import ReceiveBuffer


def write(buffer: ReceiveBuffer, data: bytes) -> None:
    buffer.room()[: len(data)] = data
    buffer.received(len(data))


def taken(buffer: ReceiveBuffer, count: int) -> memoryview:
    view = buffer.take(count)
    assert view is not None
    return view


def test_bytes_come_out_as_they_went_in() -> None:
    buffer = ReceiveBuffer(10)
    assert buffer.take(3) is None
    write(buffer, b"ab")
    assert buffer.take(3) is None
    write(buffer, b"cde")
    assert buffer.peek(3) is not None
    assert bytes(taken(buffer, 3)) == b"abc"
    assert bytes(taken(buffer, 2)) == b"de"
    assert bytes(taken(buffer, 0)) == b""
    assert buffer.take(1) is None


def test_what_fits_is_not_copied() -> None:
    buffer = ReceiveBuffer(100)
    write(buffer, b"abc")
    first = taken(buffer, 2)
    buffer.take(5)
    write(buffer, b"defg")
    second = taken(buffer, 5)
    assert first.obj is second.obj


def test_what_does_not_fit_gets_a_chunk_of_its_own_size() -> None:
    buffer = ReceiveBuffer(10)
    write(buffer, b"abcdefgh")
    assert bytes(taken(buffer, 4)) == b"abcd"
    assert buffer.take(20) is None
    assert len(buffer.room()) == 16
    assert buffer.size == 20
    write(buffer, b"x" * 16)
    assert bytes(taken(buffer, 20)) == b"efgh" + b"x" * 16


def test_a_chunk_that_no_view_sees_is_used_again() -> None:
    buffer = ReceiveBuffer(10)
    for number in range(100):
        write(buffer, bytes([number]) * 10)
        view = taken(buffer, 10)
        assert bytes(view) == bytes([number]) * 10
        chunk = view.obj
        del view
        assert buffer.take(1) is None
        write(buffer, b"")
        assert buffer.room().obj is chunk


def test_a_chunk_that_a_view_sees_is_left_alone() -> None:
    buffer = ReceiveBuffer(10)
    views = []
    for number in range(100):
        write(buffer, bytes([number]) * 10)
        views.append(taken(buffer, 10))
        assert buffer.take(1) is None
    assert [bytes(view) for view in views] == [bytes([number]) * 10 for number in range(100)]


def test_a_slice_of_a_view_counts_as_one() -> None:
    buffer = ReceiveBuffer(10)
    write(buffer, b"0123456789")
    view = taken(buffer, 10)
    part = view[3:5]
    view.release()
    del view
    assert buffer.take(1) is None
    write(buffer, b"xxxxxxxxxx")
    assert bytes(part) == b"34"


def test_views_cannot_be_written_to() -> None:
    buffer = ReceiveBuffer(10)
    write(buffer, b"abc")
    view = taken(buffer, 3)
    assert view.readonly


def test_there_is_always_room_for_what_is_needed() -> None:
    buffer = ReceiveBuffer(10)
    for size in (1, 9, 10, 11, 3, 30, 2, 10):
        received = 0
        while (view := buffer.take(size)) is None:
            room = len(buffer.room())
            assert room > 0
            count = min(room, size - received)
            write(buffer, b"x" * count)
            received += count
        assert bytes(view) == b"x" * size


def test_an_idle_buffer_goes_back_to_its_own_size() -> None:
    buffer = ReceiveBuffer(10)
    assert buffer.take(1000) is None
    write(buffer, b"x" * 1000)
    assert buffer.size == 1000
    assert bytes(taken(buffer, 1000)) == b"x" * 1000
    assert buffer.take(8) is None
    assert buffer.size == 10


@given(
    data=st.binary(max_size=300),
    takes=st.lists(st.integers(0, 40), max_size=40),
    writes=st.lists(st.integers(1, 40), min_size=1),
    keep=st.booleans(),
)
def test_the_stream_is_the_same_however_it_is_written_and_taken(
    data: bytes, takes: list[int], writes: list[int], keep: bool
) -> None:
    buffer = ReceiveBuffer(16)
    written = taken = turn = 0
    views = []
    for count in takes:
        while (view := buffer.take(count)) is None and written < len(data):
            size = min(writes[turn % len(writes)], len(buffer.room()), len(data) - written)
            write(buffer, data[written : written + size])
            written += size
            turn += 1
        if view is None:
            break
        assert view == data[taken : taken + count]
        if keep:
            views.append((view, data[taken : taken + count]))
        taken += count
    assert all(view == expected for view, expected in views)
