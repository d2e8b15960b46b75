"""The kernels if numba is installed, else the fallback: both modules have the same two names."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.protocol.stored.bulk.fallback import decode, encode

    COMPILED: bool
else:
    try:
        from penstock.protocol.stored.bulk.fast import decode, encode

        COMPILED = True
    except ImportError:
        from penstock.protocol.stored.bulk.fallback import decode, encode

        COMPILED = False

__all__ = ["COMPILED", "decode", "encode"]
