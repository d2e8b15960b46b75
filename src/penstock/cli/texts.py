"""Texts that others have written, on a terminal."""

import unicodedata

_LAYOUT = "\n\t\r"
"""Control characters that text has."""


def printable(text: str) -> str:
    """In one line, with nothing in it that a terminal would take for a command."""
    return "".join(repr(each)[1:-1] if _is_control(each) else each for each in text)


def is_plain(text: str) -> bool:
    """Whether a terminal can show it as it is, line by line."""
    return not any(_is_control(each) and each not in _LAYOUT for each in set(text))


def shortened(text: str, length: int) -> str:
    return text if len(text) <= length else f"{text[: length - 1]}…"


def shortened_in_the_middle(text: str, length: int) -> str:
    """Names often begin alike and end differently, or the other way round: both ends stay."""
    if len(text) <= length:
        return text
    end = (length - 1) // 2
    return f"{text[: length - 1 - end]}…{text[len(text) - end :]}"


def _is_control(character: str) -> bool:
    return unicodedata.category(character) == "Cc"
