"""The file sink's formats: the kernels write the same bytes as plain Python."""

from hypothesis import given
from hypothesis import strategies as st

from penstock.connectors.file import sink as file_kernel
from penstock.connectors.file.sink import FileFormat, encode
from penstock.protocol.stored.bulk import Bytes
from tests.connectors.stores import plain_formats as file_plain
from tests.delivery.fake_epoch import column


@given(st.lists(st.binary(max_size=40), min_size=1), st.integers(0, 3))
def test_the_kernels_write_the_same_bytes_as_plain_python(rows: list[bytes], skipped: int) -> None:
    whole = column([b"before"] * skipped + rows)
    values = Bytes(whole.offsets[skipped:], whole.data)  # type: ignore[index]
    assert bytes(file_kernel.lines(values)) == file_plain.lines(values) == b"".join(row + b"\n" for row in rows)
    assert bytes(file_kernel.frames(values)) == file_plain.frames(values)
    assert bytes(encode(values, FileFormat.RAW)) == b"".join(rows)


def test_raw_payloads_are_not_copied() -> None:
    values = column([b"one", b"two"])
    view = encode(values, FileFormat.RAW)
    assert isinstance(view, memoryview)
    assert view.obj is values.data
