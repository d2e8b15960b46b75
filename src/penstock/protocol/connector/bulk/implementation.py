"""The kernels if numba is installed, else the fallback: both modules have the same four names."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.protocol.connector.bulk.fallback import StreamTable, encode_acks, rewrite, scan

    COMPILED: bool
else:
    try:
        from penstock.protocol.connector.bulk.fast import StreamTable, encode_acks, rewrite, scan

        COMPILED = True
    except ImportError:
        from penstock.protocol.connector.bulk.fallback import StreamTable, encode_acks, rewrite, scan

        COMPILED = False

__all__ = ["COMPILED", "StreamTable", "encode_acks", "rewrite", "scan"]
