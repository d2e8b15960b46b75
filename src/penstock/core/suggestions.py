"""Hints for unknown names: the name that was probably meant, or the known ones."""

from collections.abc import Iterable
from difflib import get_close_matches

NAMES_SHOWN_MAX = 20
"""Names in a hint: a longer list does not help."""

_ALIKE_MIN = 0.5
"""Names are short: with difflib's default of 0.6, one typo in a name of four characters matches nothing."""


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name that is most similar to this one, ignoring case, if any is similar enough."""
    by_lower_case = {each.lower(): each for each in sorted(known)}
    found = get_close_matches(name.lower(), by_lower_case, 1, _ALIKE_MIN)
    return by_lower_case[found[0]] if found else None


def suggestion(name: str, known: Iterable[str], label: str = "Available") -> str:
    """A hint for the user: `Did you mean "…"?`, or a list of the known names."""
    names = sorted(known)
    near = nearest(name, names)
    if near is not None:
        return f'Did you mean "{near}"?'
    more = " …" if len(names) > NAMES_SHOWN_MAX else ""
    return f"{label}: {', '.join(names[:NAMES_SHOWN_MAX]) or 'none'}{more}."
