"""Names and layout need nothing but Python; bulk coding works without numba too, only slower."""

from tests.protocol.connector.test_light import BLOCK, run

USE = """
from array import array
from penstock.protocol.stored.bulk import COMPILED, Bytes, decode, encode
assert not COMPILED
encoded = encode(Bytes(array("i", [0, 1]), b"v"), sources=Bytes(array("i", [0, 1]), b"s"))
assert decode(encoded.data).sources.rows() == [b"s"]
"""


def test_importing_the_names_imports_neither_numpy_nor_numba() -> None:
    run("import sys, penstock.protocol.stored; assert not {'numpy', 'numba'} & set(sys.modules)")


def test_without_numba_the_fallback_does_the_same() -> None:
    run(BLOCK + USE)


def test_with_numba_the_kernels_are_used() -> None:
    run("from penstock.protocol.stored.bulk import COMPILED; assert COMPILED")
