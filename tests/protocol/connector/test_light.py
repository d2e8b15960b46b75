"""Speaking the protocol needs nothing but Python; bulk decoding works without numba too, only slower."""

import subprocess
import sys

BLOCK = """
import sys
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("numpy", "numba", "llvmlite"):
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Missing())
"""

USE = """
from penstock.protocol.connector.frames import EventTimeUnit
from penstock.protocol.connector import Message, encode
from penstock.protocol.connector.bulk import COMPILED, Receiver, StreamTable, encode_acks, rewrite
assert not COMPILED
receiver, table = Receiver(), StreamTable(1)
table.open(7)
data = encode(Message(7, 8, 9, b"key", b"payload"))
receiver.get_buffer()[:len(data)] = data
(columns,) = receiver.received(len(data))
admission = table.admit(columns, EventTimeUnit.MS)
assert rewrite(columns, admission)[0].count == 1
assert len(encode_acks(1, admission.streams.stream_ids, admission.streams.last_ids)) == 29
"""

SEND = """
from array import array
from penstock.protocol.connector import Decoder, Message, Use
from penstock.protocol.connector.output import COMPILED, encode_output
from penstock.protocol.stored.bulk import Bytes
assert not COMPILED
texts = Bytes(array("i", [0, 1, 3]), b"abc")
frames = encode_output(array("q", [-1, 1999]), texts, texts, 7, unit_us=1000)
assert list(Decoder(Use.SINK).feed(frames)) == [Message(1, 7, -1, b"a", b"a"), Message(1, 8, 1, b"bc", b"bc")]
"""


def run(code: str) -> None:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr


def test_importing_the_protocol_imports_neither_numpy_nor_numba() -> None:
    run("import sys, penstock.protocol.connector; assert not {'numpy', 'numba'} & set(sys.modules)")


def test_without_numba_the_fallback_does_the_same() -> None:
    run(BLOCK + USE)
    run(BLOCK + SEND)


def test_with_numba_the_kernels_are_used() -> None:
    run("from penstock.protocol.connector.bulk import COMPILED; assert COMPILED")


def test_the_kernels_work_where_no_cache_can_be_written() -> None:
    broken = "import numba.core.caching as c; c.CacheImpl._locator_classes = [];"
    run(
        broken + "from penstock.protocol.connector.bulk import COMPILED, scan; assert COMPILED and not len(scan(b'ab'))"
    )
