"""Files that were found, when they are complete, and what is known of them. Pure: time and state are arguments.

    found ──complete (Completeness)──▶ Verdict: READ · DONE · CHANGED, by the record of streams (Record)

The name of a file's stream contains its key and its version, so the source's table of streams is the record of what was
read: it is stored with the events.
"""

import re
from collections.abc import Iterable, Sequence
from enum import Enum
from fnmatch import fnmatchcase
from hashlib import sha256
from typing import NamedTuple

from penstock.connectors.api import StreamState
from penstock.connectors.directory.options import DirectoryOptions

_SHOWN_CHARS_MAX = 150
"""Of a key, in the name of its stream: with the marks it stays below what the source stores of a name."""

_MARKS = re.compile(r"#([0-9a-f]{16})\.([0-9a-f]{16})$")


class Found(NamedTuple):
    key: str
    """Its path below the directory or the prefix, with slashes."""
    size: int
    modified_us: int
    version: str
    """Another one if it was changed."""

    @property
    def stream(self) -> str:
        """The name of its stream."""
        shown = self.key if len(self.key) <= _SHOWN_CHARS_MAX else f"…{self.key[-_SHOWN_CHARS_MAX:]}"
        return f"{shown}#{_mark(self.key)}.{_mark(self.version)}"


def _mark(text: str) -> str:
    return sha256(text.encode(errors="surrogateescape")).hexdigest()[:16]


def is_wanted(key: str, options: DirectoryOptions) -> bool:
    """By its name, and by the names of its folders: those that are ignored are not entered."""
    *folders, name = key.split("/")
    if options.finished == "marker" and name.endswith(options.marker):
        return False
    ignored = any(fnmatchcase(part, one) for part in (*folders, name) for one in options.ignore)
    return fnmatchcase(name, options.pattern) and not ignored


class Listing(NamedTuple):
    """What was found at one look."""

    files: Sequence[Found]
    """Those that are wanted."""
    markers: frozenset[str] = frozenset()
    """The keys that have a marker."""


class Completeness:
    """Which files may be read."""

    def __init__(self, options: DirectoryOptions) -> None:
        self._rule = options.finished
        if options.folder is None and self._rule == "stable":
            self._rule = "renamed"
        self._stable_seconds = options.stable_for
        self._since: dict[str, tuple[str, float]] = {}
        """Since when a file has had its version."""

    def complete(self, listing: Listing, now: float) -> list[Found]:
        match self._rule:
            case "marker":
                return [file for file in listing.files if file.key in listing.markers]
            case "renamed":
                return [*listing.files]
        before, self._since = self._since, {}
        for file in listing.files:
            version, since = before.get(file.key, ("", now))
            self._since[file.key] = (file.version, since if version == file.version else now)
        return [file for file in listing.files if now - self._since[file.key][1] >= self._stable_seconds]


def ordered(files: Iterable[Found], order: str) -> list[Found]:
    return sorted(files, key=lambda file: (file.modified_us, file.key) if order == "time" else (0, file.key))


class Verdict(Enum):
    READ = "read"
    """It is new, or was not read to its end."""
    DONE = "done"
    CHANGED = "changed"
    """Another version of it was read before."""


class Record:
    """The streams of files that were read, or begun."""

    def __init__(self, names: Iterable[str]) -> None:
        self._names: dict[str, set[str]] = {}
        """By the mark of its key: the names of a file's streams, one for each version."""
        self._missing: dict[str, float] = {}
        """By the mark of the key: since when the file is not found."""
        for name in names:
            self.add(name)

    def __len__(self) -> int:
        return len(self._names)

    def add(self, name: str) -> None:
        if (marks := _MARKS.search(name)) is not None:
            self._names.setdefault(marks[1], set()).add(name)

    def verdict(self, file: Found, state: StreamState) -> Verdict:
        """`state` is that of its stream."""
        if state in (StreamState.ENDED, StreamState.COMPLETE):
            return Verdict.DONE
        return Verdict.CHANGED if self.others(file) and state is StreamState.UNKNOWN else Verdict.READ

    def others(self, file: Found) -> list[str]:
        """The streams of its other versions."""
        return sorted(self._names.get(_mark(file.key), set()) - {file.stream})

    def gone(self, listing: Listing, now: float, seconds: float) -> list[str]:
        """The streams of files that have not been found for so long."""
        there = {_mark(file.key) for file in listing.files}
        self._missing = {mark: self._missing.get(mark, now) for mark in self._names if mark not in there}
        long = [mark for mark, since in self._missing.items() if now - since >= seconds]
        return [name for mark in long for name in sorted(self._names[mark])]

    def forget(self, name: str) -> None:
        marks = _MARKS.search(name)
        names = self._names.get(marks[1], set()) if marks is not None else set()
        names.discard(name)
        if marks is not None and not names:
            self._names.pop(marks[1], None)
