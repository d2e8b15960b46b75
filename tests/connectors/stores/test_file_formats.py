"""The file sink's formats: kernels and plain Python give the same bytes."""

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.connectors.file import plain as file_plain
from penstock.connectors.file.formats import FileFormat, encode
from penstock.protocol.stored.bulk import Bytes
from tests.delivery.fake_epoch import column

file_kernel = pytest.importorskip("penstock.connectors.file.kernel")

PLAIN = """
import sys
sys.modules["numba"] = None
from penstock.connectors.file import formats as file_formats
print(file_formats.lines.__module__)
"""


@given(st.lists(st.binary(max_size=40), min_size=1), st.integers(0, 3))
def test_the_kernels_do_what_plain_python_does(rows: list[bytes], skipped: int) -> None:
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


@pytest.mark.process
def test_without_numba_plain_python_is_used() -> None:
    done = subprocess.run([sys.executable, "-c", PLAIN], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "penstock.connectors.file.plain"
