"""Records of a stream: the limits of their size, and delimiters as people write them in YAML."""

import re
from typing import Annotated

from pydantic import AfterValidator

from penstock.core.errors import RequestError

_ESCAPES = {b"n": b"\n", b"r": b"\r", b"t": b"\t", b"0": b"\0", b"\\": b"\\"}
_ESCAPE = re.compile(rb"\\(x[0-9a-fA-F]{2}|.?)", re.DOTALL)


def delimiter_bytes(text: str) -> bytes:
    """With `\\n`, `\\r`, `\\t`, `\\0`, `\\\\` and `\\xNN` for what they stand for. Raises RequestError."""
    return _ESCAPE.sub(_meant, text.encode())


def _meant(match: re.Match[bytes]) -> bytes:
    written = match[1]
    if len(written) == 3:
        return bytes.fromhex(written[1:].decode())
    if written not in _ESCAPES:
        raise RequestError(
            f"\\{written.decode(errors='replace')} is not a valid escape", r"Write \n \r \t \0 \\ or \xNN."
        )
    return _ESCAPES[written]


def _checked(text: str) -> str:
    try:
        found = delimiter_bytes(text)
    except RequestError as error:
        raise ValueError(f"{error} ({error.hint.rstrip('.')})") from error
    if not found:
        raise ValueError("a delimiter has at least one byte")
    return text


Delimiter = Annotated[str, AfterValidator(_checked)]


# Limits that interceptors share.

RECORD_BYTES_MAX = 4 << 20
"""Of one record unless its connector says otherwise: what is kept in memory of a peer that never ends one."""

RECORD_BYTES_LIMIT = 8 << 20
"""The most that a connector may say: an event is stored in one append, which the store limits to 16 MiB."""
