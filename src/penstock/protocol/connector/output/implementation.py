"""The kernel if numba is installed, else the fallback: both modules have the same name."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.protocol.connector.output.fallback import encode_output

    COMPILED: bool
else:
    try:
        from penstock.protocol.connector.output.fast import encode_output

        COMPILED = True
    except ImportError:
        from penstock.protocol.connector.output.fallback import encode_output

        COMPILED = False

__all__ = ["COMPILED", "encode_output"]
