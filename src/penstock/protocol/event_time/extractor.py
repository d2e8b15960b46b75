"""Event times of a block of events, from a field of their data.

`Extractor` finds the field with a compiled scanner, or with a plugin for codecs that have none, and parses the times
with another kernel. The kernels check no bounds of the arrays that they write to: these are allocated here, with one
row for each event.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from penstock.core.types import Buffer
from penstock.protocol.event_time import codes, json_kernel, record_kernel, time_kernel
from penstock.protocol.event_time.field import ISO, SCANNED_CODECS, UNITS_US, EventTimeField
from penstock.protocol.event_time.plain import Found, time_of
from penstock.protocol.stored.event import NO_TIME

I64: TypeAlias = NDArray[np.int64]
U8: TypeAlias = NDArray[np.uint8]

FieldValues: TypeAlias = Callable[[Sequence[bytes]], Sequence[object]]
"""A plugin's: for each of a block's events the value of the field, as int, float, str or datetime; None if there is
none. It treats each event independently, and raises if one of them cannot be decoded."""

_SHOWN_MAX = 100
"""Characters of a text in a reason."""

_NAMES = {"json": "JSON", "csv": "CSV", "msgpack": "MessagePack"}
_UNITS = {"s": "seconds", "ms": "milliseconds", "us": "microseconds", "ns": "nanoseconds"}


@dataclass(frozen=True, slots=True, eq=False)
class Block:
    """Events in one buffer: row i is `data[starts[i] : ends[i]]`. Raises IndexError unless all are inside of it,
    because the kernels trust these numbers.
    """

    data: Buffer
    starts: I64
    ends: I64

    def __post_init__(self) -> None:
        if len(self.starts) != len(self.ends):
            raise IndexError(f"{len(self.starts)} starts and {len(self.ends)} ends")
        if len(self) and not (
            self.starts.min() >= 0 and (self.starts <= self.ends).all() and self.ends.max() <= len(self.data)
        ):
            raise IndexError(f"not all rows are inside a buffer of {len(self.data)} bytes")

    def __len__(self) -> int:
        return len(self.starts)

    def row(self, row: int) -> bytes:
        return bytes(memoryview(self.data)[self.starts[row] : self.ends[row]])

    def chosen(self, rows: I64) -> "Block":
        return Block(self.data, self.starts[rows], self.ends[rows])


@dataclass(frozen=True, slots=True, eq=False)
class EventTimes:
    """The times of a block, one for each event."""

    times: I64
    """In microseconds; NO_TIME for an event without a usable one."""
    kinds: U8
    """`codes.TIME`, or the problem."""
    quotes: Mapping[int, str]
    """By row, texts that are not times."""

    def untimed(self) -> list[int]:
        """The rows of events without a usable time."""
        rows: list[int] = np.flatnonzero(self.kinds != codes.TIME).tolist()
        return rows


class Extractor:
    """Finds the event times of one source. `plugins` are for codecs without a scanner."""

    def __init__(self, spec: EventTimeField, plugins: Mapping[str, FieldValues] | None = None) -> None:
        self.spec = spec
        self._plugins = plugins or {}
        steps = [step.encode() for step in spec.steps]
        self._path = np.frombuffer(b"".join(steps), np.uint8)
        self._path_ends = np.array([*accumulate(map(len, steps))], np.int64)
        self._is_iso = spec.format == ISO
        self._unit = UNITS_US.get(spec.format)

    def times(self, block: Block, codec: str | None) -> EventTimes:
        """The times of these events, all of which have this codec."""
        plugin = self._plugins.get(codec or "")
        if plugin is not None:
            return self._of_values(_decoded(plugin, block))
        kinds = np.full(len(block), codes.NO_FIELDS, np.uint8)
        found = np.zeros((2, len(block)), np.int64)
        if codec in SCANNED_CODECS and len(block):
            array = np.frombuffer(block.data, np.uint8) if len(block.data) else np.zeros(1, np.uint8)
            self._find(array, block, codec, kinds, found)
            return self._parsed(array, codec, kinds, found)
        return EventTimes(np.full(len(block), NO_TIME, np.int64), kinds, {})

    def _find(self, array: U8, block: Block, codec: str, kinds: U8, found: I64) -> None:
        rows = (array, block.starts, block.ends)
        if codec == "json":
            json_kernel.find_json(*rows, self._path, self._path_ends, kinds, found[0], found[1])
        elif codec == "csv":
            column = -1 if self.spec.column is None else self.spec.column
            record_kernel.find_csv(*rows, column, kinds, found[0], found[1])
        else:
            pairs = np.empty(len(self._path_ends), np.int64)
            record_kernel.find_msgpack(*rows, self._path, self._path_ends, pairs, kinds, found[0], found[1])

    def _parsed(self, array: U8, codec: str, kinds: U8, found: I64) -> EventTimes:
        times, scanned = found[0].copy(), kinds
        if codec == "msgpack":
            _convert_numbers(kinds, found, times, self._unit)
        if self._is_iso or self._unit is not None:
            scanned = kinds.copy()
            shift = 0 if self._unit is None else len(str(self._unit[0])) - len(str(self._unit[1]))
            if not time_kernel.parse(array, found[0], found[1], self._is_iso, shift, kinds, times):
                return EventTimes(times, kinds, {})
        quotes = dict(self._parse_slowly(array, codec, kinds, scanned, found, times))
        times[kinds != codes.TIME] = NO_TIME
        return EventTimes(times, kinds, quotes)

    def _parse_slowly(
        self, array: U8, codec: str, kinds: U8, scanned: U8, found: I64, times: I64
    ) -> Iterator[tuple[int, str]]:
        """What the kernel has left: texts with escapes, and those of other formats. Yields the rows and the beginnings
        of texts and numbers that are not times. `scanned` are the kinds before the kernel.
        """
        for row in np.flatnonzero(scanned >= codes.TEXT).tolist():
            if kinds[row] == codes.TIME:
                continue
            text = _text(bytes(array[found[0, row] : found[1, row]]), codec, is_escaped=scanned[row] == codes.ESCAPED)
            if kinds[row] == codes.NUMBER:
                kinds[row] = codes.WRONG_TYPE
            elif kinds[row] >= codes.TEXT:
                one = time_of(text, self.spec.format)
                kinds[row], times[row] = one.kind, one.time_us
            if kinds[row] != codes.TIME:
                yield row, text[:_SHOWN_MAX]

    def _of_values(self, values: Sequence[object]) -> EventTimes:
        found = [Found(codes.MALFORMED) if isinstance(v, Exception) else time_of(v, self.spec.format) for v in values]
        times = np.array([one.time_us if one.kind == codes.TIME else NO_TIME for one in found], np.int64)
        kinds = np.array([one.kind for one in found], np.uint8)
        quotes = {row: str(values[row])[:_SHOWN_MAX] for row in np.flatnonzero(kinds != codes.TIME).tolist()}
        return EventTimes(times, kinds, quotes)

    def why(self, kind: int, quote: str | None, codec: str | None) -> str:
        """Why an event has no usable time."""
        field, shown = f'the field "{self.spec.field}"', f" ({quote!r})" if quote is not None else ""
        reasons = {
            codes.MISSING: f"{field} is missing",
            codes.NULL: f"{field} is null",
            codes.WRONG_TYPE: f"{field} has the wrong type{shown}: expected {self._expected()}",
            codes.MALFORMED: f"the event is not valid {_NAMES.get(str(codec), codec)}",
            codes.TOO_DEEP: f"the event is nested more than {codes.DEPTH_MAX} times",
            codes.NOT_A_TIME: f"{field}{shown} is not {self._expected()}",
            codes.OUT_OF_RANGE: f"{field}{shown} is outside the years 1 to 9999",
            codes.NO_FIELDS: f"the codec {codec} has no fields" if codec else "there is no codec for its content type",
        }
        return f"no event time: {reasons[kind]}"

    def _expected(self) -> str:
        if self._is_iso:
            return "a time in ISO 8601, like 2026-01-31T12:00:00Z"
        if self._unit is not None:
            return f"a number of {_UNITS[self.spec.format]}"
        return f"a text with the format {self.spec.format}"


def _text(data: bytes, codec: str, *, is_escaped: bool = False) -> str:
    text = data.decode("utf-8", "surrogateescape")
    if not is_escaped:
        return text
    return text.replace('""', '"') if codec == "csv" else str(json.loads(f'"{text}"'))


def _convert_numbers(kinds: U8, found: I64, times: I64, unit: tuple[int, int] | None) -> None:
    """Binary numbers, and MessagePack's own times, to microseconds. Floats are rounded to the nearest one."""
    numbers, floats = np.flatnonzero(kinds == codes.INTEGER), np.flatnonzero(kinds == codes.FLOAT)
    if unit is None:
        kinds[numbers] = kinds[floats] = codes.WRONG_TYPE
    else:
        multiplier, divisor = unit
        values = found[0, numbers]
        fits = (values >= codes.TIME_MIN // multiplier) & (values <= codes.TIME_MAX // multiplier) | (divisor > 1)
        kinds[numbers] = np.where(fits, codes.TIME, codes.OUT_OF_RANGE)
        times[numbers] = np.where(fits, values, 0) * multiplier // divisor
        with np.errstate(invalid="ignore", over="ignore"):
            exact = np.rint(_floats(found[:, floats]) * multiplier / divisor)
            fits = (exact >= codes.TIME_MIN) & (exact <= codes.TIME_MAX)
            kinds[floats] = np.where(fits, codes.TIME, codes.OUT_OF_RANGE)
            times[floats] = np.where(fits, exact, 0).astype(np.int64)
    outside = (kinds == codes.TIME) & ((times < codes.TIME_MIN) | (times > codes.TIME_MAX))
    kinds[outside] = codes.OUT_OF_RANGE


def _floats(found: I64) -> NDArray[np.float64]:
    """Of 64 bits, or of 32 where the kernel has marked them."""
    wide, narrow = found[0].view(np.float64), found[0].astype(np.uint32).view(np.float32)
    floats: NDArray[np.float64] = np.where(found[1] < 0, narrow.astype(np.float64), wide)
    return floats


def _decoded(plugin: FieldValues, block: Block) -> list[object]:
    """What the plugin finds; if it raises, the events that it cannot decode are found one by one."""
    rows = [block.row(row) for row in range(len(block))]
    try:
        return [value for _, value in zip(rows, plugin(rows), strict=True)]
    except Exception:
        return [_decoded_one(plugin, row) for row in rows]


def _decoded_one(plugin: FieldValues, row: bytes) -> object:
    try:
        return plugin([row])[0]
    except Exception as error:
        return error
