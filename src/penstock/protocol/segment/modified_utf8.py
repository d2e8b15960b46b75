"""Java's modified UTF-8, both ways: NUL is two bytes, and what lies beyond U+FFFF two surrogates of three bytes each.

Strict where Java's own reader is not: a zero byte, an overlong form other than NUL's and a surrogate without its other
half are refused. A name that Python cannot write as UTF-8 again would fail somewhere later, and far from its sender.
"""

import re

from penstock.core.errors import ProtocolError, RequestError

_NUL = b"\xc0\x80"
_ILLEGAL_BYTE = re.compile(rb"[\x00\xf0-\xff]")
_BEYOND_U_FFFF = re.compile("[\U00010000-\U0010ffff]")


def encode_text(text: str) -> bytes:
    """RequestError when the text holds half a surrogate pair."""
    if text.isascii() and "\0" not in text:
        return text.encode("ascii")
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise RequestError(f"half a surrogate pair at character {error.start} of a text") from None
    return _BEYOND_U_FFFF.sub(_pair, text).encode("utf-8", "surrogatepass").replace(b"\0", _NUL)


def decode_text(data: bytes) -> str:
    """ProtocolError, saying where, when the bytes are not modified UTF-8."""
    if data.isascii() and b"\0" not in data:
        return data.decode("ascii")
    if illegal := _ILLEGAL_BYTE.search(data):
        at = illegal.start()
        raise ProtocolError(f"byte {at} of a text is {data[at]:#04x}, which modified UTF-8 never has")
    try:
        halves = data.replace(_NUL, b"\0").decode("utf-8", "surrogatepass")
        return halves.encode("utf-16-be", "surrogatepass").decode("utf-16-be")
    except UnicodeDecodeError as error:
        raise ProtocolError(f"a text is not modified UTF-8: {error.reason}") from None


def _pair(match: re.Match[str]) -> str:
    code = ord(match[0]) - 0x10000
    return chr(0xD800 + (code >> 10)) + chr(0xDC00 + (code & 0x3FF))
