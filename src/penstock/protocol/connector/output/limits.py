"""What makes an event no message, in the same words from the kernel and from the fallback."""

from penstock.core.errors import LimitExceeded
from penstock.protocol.stored.bulk import Bytes, Column

KEY_SIZE_MAX = 2**16 - 1
"""What a MESSAGE's `sb` holds."""

_HINT = "Store large objects elsewhere, and send a reference to them."


def check_rows(times: Column, keys: Bytes, values: Bytes) -> None:
    """ValueError unless all columns have as many rows."""
    if not len(times) == len(keys) == len(values):
        raise ValueError(f"the columns have {len(times)}, {len(keys)} and {len(values)} rows")


def large_key(message_id: int, size: int) -> LimitExceeded:
    return LimitExceeded(f"message {message_id}: its key of {size} bytes is over the limit of {KEY_SIZE_MAX}", _HINT)


def large_frame(message_id: int, size: int, frame_size_max: int) -> LimitExceeded:
    return LimitExceeded(
        f"message {message_id}: its frame of {size} bytes is over the limit of {frame_size_max}", _HINT
    )
