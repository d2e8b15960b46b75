"""A program that speaks the protocol loads neither numpy nor numba; the kernels run where no cache can be written."""

import subprocess
import sys

import pytest


def run(code: str) -> None:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr


def test_importing_the_protocol_imports_neither_numpy_nor_numba() -> None:
    run("import sys, penstock.protocol.connector; assert not {'numpy', 'numba'} & set(sys.modules)")


def test_importing_stored_events_imports_neither_numpy_nor_numba() -> None:
    run("import sys, penstock.protocol.stored; assert not {'numpy', 'numba'} & set(sys.modules)")


@pytest.mark.slow
def test_the_kernels_work_where_no_cache_can_be_written() -> None:
    broken = "import numba.core.caching as c; c.CacheImpl._locator_classes = [];"
    run(broken + "from penstock.protocol.connector.bulk import scan; assert not len(scan(b'ab'))")
