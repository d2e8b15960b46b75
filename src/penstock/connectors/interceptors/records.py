"""Interceptors that change or drop whole records."""

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, Literal

from pydantic import Field, field_validator

from penstock.connectors.api import Options
from penstock.connectors.interceptors.api import (
    AboutInterceptor,
    AnyDelimiter,
    Incoming,
    Interceptor,
    OutgoingInterceptor,
    RecordStage,
    Rejected,
    ValueStage,
    delimiter_bytes,
)
from penstock.core.errors import RequestError
from penstock.core.plugins import NotInstalled, needed

# remove-empty


class RemoveEmptyOptions(Options):
    blank: bool = False
    """Also remove records that have nothing but blanks, tabs and line ends."""


class RemoveEmpty(Interceptor[RemoveEmptyOptions]):
    about = AboutInterceptor("remove-empty", "Removes records that have no bytes.", RemoveEmptyOptions)

    def __init__(self, options: RemoveEmptyOptions) -> None:
        super().__init__(options)
        self.needs_records = options.blank  # a part of a stream may be nothing but blanks

    def incoming(self, *, framed: bool = False) -> Incoming:  # noqa: ARG002
        if self.options.blank:
            return RecordStage(lambda record: record if record.strip() else None)
        return RecordStage(lambda record: record or None)


# ingest-timestamp

_NANOSECONDS = {"ns": 1, "us": 1_000, "ms": 1_000_000, "s": 1_000_000_000}


class IngestTimestampOptions(Options):
    form: Literal["binary", "number", "iso"] = "binary"
    """`binary`: eight bytes, the highest first. `number`: decimal digits. `iso`: like `2026-01-02T03:04:05.000006Z`."""
    unit: Literal["ns", "us", "ms", "s"] = "ns"
    """Of `binary` and `number`, since 1970."""
    separator: AnyDelimiter = " "
    """Stands between a `number` or `iso` and the record."""


class IngestTimestamp(Interceptor[IngestTimestampOptions]):
    about = AboutInterceptor(
        "ingest-timestamp",
        "Puts the time before each record: that of its arrival under `in`, of its sending under `out`.",
        IngestTimestampOptions,
    )
    needs_records = True

    def incoming(self, *, framed: bool = False) -> Incoming:  # noqa: ARG002
        return RecordStage(stamp(self.options))

    def outgoing(self) -> OutgoingInterceptor:
        return ValueStage(stamp(self.options))


def stamp(options: IngestTimestampOptions, clock_ns: Callable[[], int] = time.time_ns) -> Callable[[bytes], bytes]:
    """Puts the clock's time before a record."""
    unit, separator = _NANOSECONDS[options.unit], delimiter_bytes(options.separator)
    match options.form:
        case "binary":
            return lambda record: (clock_ns() // unit).to_bytes(8, "big") + record
        case "number":
            return lambda record: b"%d%s%s" % (clock_ns() // unit, separator, record)
    return lambda record: _iso(clock_ns()) + separator + record


def _iso(now_ns: int) -> bytes:
    seconds, rest = divmod(now_ns, 1_000_000_000)
    shown = datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S")
    return f"{shown}.{rest // 1000:06}Z".encode()


# regex-extract

_WHOLE = "whole"


class RegexExtractOptions(Options):
    """Patterns are those of RE2, whose time grows with the size of a record only: no record can stall the worker. They
    match bytes; `(?P<name>…)` is a group.
    """

    pattern: str = Field(min_length=1)
    """The first match in a record is taken."""
    group: str | None = None
    """The name of the group that becomes the event. By default the only named one, or else the whole match."""
    missing: Literal["drop", "dead-letter", "keep"] = "dead-letter"
    """What becomes of a record without a match: nothing, a dead letter, or the record as it is."""

    @field_validator("pattern")
    @classmethod
    def _pattern_compiles(cls, text: str) -> str:
        with suppress(NotInstalled):  # it is checked where the worker runs
            _group_names(text)
        return text


def _group_names(pattern: str) -> list[str]:
    """As RE2 sees them. Raises ValueError if the pattern is not one of RE2, and NotInstalled."""
    pa: Any = needed("pyarrow", "the interceptor regex-extract", "spark")
    pc: Any = needed("pyarrow.compute", "the interceptor regex-extract", "spark")
    try:
        kind = pc.extract_regex(pa.array([b""]), pattern).type
    except pa.ArrowException as error:
        reason = str(error).strip()
        hint = "write (?:…) for a group without a name" if "unnamed" in reason else "RE2 has no look-around"
        raise ValueError(f"it is not a valid pattern: {reason} ({hint})") from None
    return [kind.field(number).name for number in range(kind.num_fields)]


class RegexExtract(Interceptor[RegexExtractOptions]):
    about = AboutInterceptor(
        "regex-extract", "Takes the part of each record that matches a pattern.", RegexExtractOptions, "spark"
    )
    needs_records = True

    def incoming(self, *, framed: bool = False) -> Incoming:  # noqa: ARG002
        return RegexStage(self.options)


class RegexStage(RecordStage):
    """Matches all records of a call at once."""

    def __init__(self, options: RegexExtractOptions) -> None:
        self._pa: Any = needed("pyarrow", "the interceptor regex-extract", "spark")
        self._pc: Any = needed("pyarrow.compute", "the interceptor regex-extract", "spark")
        self._missing = options.missing
        self._pattern = options.pattern
        names = _group_names(options.pattern)
        if options.group is None and len(names) != 1:
            self._pattern, names = f"(?P<{_WHOLE}>{options.pattern})", [_WHOLE]
        self._group = options.group or names[0]
        if self._group not in names:
            raise RequestError(f"regex-extract: the pattern has no group {self._group!r}", "Write (?P<name>…).")
        super().__init__(lambda record: record)

    def feed_whole(self, records: Sequence[bytes]) -> list[bytes]:
        if not records:
            return []
        found = self._pc.extract_regex(self._pa.array(records, self._pa.binary()), self._pattern)
        matches: list[bytes] = self._pc.struct_field(found, [self._group]).to_pylist()
        if not found.null_count:
            return matches
        valid = found.is_valid().to_pylist()
        results = []
        for record, match, is_match in zip(records, matches, valid, strict=True):
            if is_match:
                results.append(match)
            elif self._missing == "keep":
                results.append(record)
            elif self._missing == "dead-letter":
                self._rejected.append(Rejected(record, "does not match the pattern of regex-extract"))
        return results
