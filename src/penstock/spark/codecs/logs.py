"""Formats of logs: syslog (RFC 5424 and 3164), CEF and GELF."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.core.errors import RequestError
from penstock.core.kinds import STRING, Field, Kind, arrow_type
from penstock.spark.codecs.api import Columns
from penstock.spark.codecs.arrow_texts import valid_texts, without_empty, without_line_ends
from penstock.spark.codecs.codec import CODECS
from penstock.spark.codecs.fixed_columns import (
    INT,
    TAGS,
    TIMESTAMP,
    FixedColumns,
    Given,
    Rows,
    concat,
    decoded_rows,
    escaped,
    merged,
    optional,
    row_by_row,
)
from penstock.spark.codecs.json_writer import map_parts, strings
from penstock.spark.codecs.packing import python_values
from penstock.spark.codecs.pair_kernel import NOT_PLAIN, bytes_and_offsets, cef_pairs, texts_at
from penstock.spark.codecs.patterns import NOT_UTF8, Extracted, extract
from penstock.spark.codecs.scalars import Misfit, timestamp
from penstock.spark.codecs.variants import BAD

# Syslog

_PRIORITY = r"<(?P<pri>\d{1,3})>"
_TIME = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d{1,6})?(?:Z|[+-]\d\d:\d\d)"
_TIME_OF_DAY = r"\d\d:\d\d:\d\d"
_OLD_TIME = rf"[A-Z][a-z]{{2}} [ \d]\d {_TIME_OF_DAY}"
_NAME = r'[^ \t\n\f\r=\]"]'
_ELEMENT = rf'\[{_NAME}{{1,64}}(?: {_NAME}{{1,64}}="(?:[^"\\\]]|\\.)*")*\]'
_NEW = (
    rf"(?s)\A<\d{{1,3}}>1 (?:-|{_TIME}) \S{{1,255}} \S{{1,48}} \S{{1,128}} \S{{1,32}} "
    rf"(?:-|(?:{_ELEMENT})+)(?: .*)?\z"
)
_SIZES = {"host": 255, "app": 48, "procid": 128, "msgid": 32}
"""How many characters a name in the header may have, in its order."""
_BEHIND_HEADER = rf"(?s)\A(?P<structured>-|(?:{_ELEMENT.replace('{1,64}', '+')})+)(?: (?P<message>.*))?\z"
_OLD_APP, _OLD_PROCID = r"[^\s:\[\]]{1,48}", r"[^\]\s]{1,128}"
_OLD = (
    rf"{_PRIORITY}(?P<time>{_OLD_TIME}) (?P<host>\S{{1,255}}) "
    rf"(?:(?P<app>{_OLD_APP})(?:\[(?P<procid>{_OLD_PROCID})\])?: ?)?(?P<message>.*)"
)
_QUOTED = r'[^"\\\]]*+(?:\\.[^"\\\]]*+)*+'
"""Possessive, unlike in patterns of RE2: Python would take a hundred bytes of memory for each character."""
_PARAMETER = re.compile(rf' ({_NAME}+)="({_QUOTED})"', re.DOTALL)
_WHOLE_NAME = re.compile(rf"{_NAME}{{1,64}}")
_OF_ELEMENT = re.compile(rf'\[{_NAME}++(?: {_NAME}++="{_QUOTED}")*+\]', re.DOTALL)
_ESCAPED = re.compile(r'\\(["\\\]])')
_STRUCTURED = Kind("map", of=(STRING, TAGS))
_PRIORITIES = 192
_YEAR_1, _YEAR_10000 = -62_135_596_800, 253_402_300_800
"""Their first seconds."""
_BOM = "\ufeff"
_NOT_SYSLOG = "is not a message of RFC 5424 or RFC 3164"


class Syslog(FixedColumns):
    """A time of RFC 3164 has no year and no time zone: it is in `time_text` only, for which RFC 5424 has no place.
    Written as RFC 3164, messages lose what that does not have: `msgid`, `structured`, an `app` with one of `: [ ]`, and
    a `procid` with `]`.
    """

    about = CODECS["syslog"]
    of = (
        Field("facility", INT),
        Field("severity", INT),
        Field("time", TIMESTAMP),
        Field("time_text", STRING),
        Field("host", STRING),
        Field("app", STRING),
        Field("procid", STRING),
        Field("msgid", STRING),
        Field("structured", _STRUCTURED),
        Field("message", STRING),
    )

    def decode(self, values: pa.BinaryArray) -> Columns:
        new = _extract_new(values)
        parts, failed = [_syslog(new, is_new=True)], new.failed
        if failed:
            left = np.array(sorted(failed))
            old = extract(values.take(pa.array(left)), _OLD, _NOT_SYSLOG)
            parts.append(_syslog(old._replace(rows=left[old.rows]), is_new=False))
            failed = {int(left[row]): reason for row, reason in old.failed.items()}
        return merged(parts, failed)

    def write(self, rows: Given) -> pa.StringArray:
        facility, severity = (pc.cast(rows.complete(name, rows.column(name)), pa.int64()) for name in _PRIORITY_PARTS)
        fits = [pc.and_(pc.greater_equal(of, 0), pc.less(of, end)) for of, end in ((facility, 24), (severity, 8))]
        if (at := pc.index(pc.and_(*fits), value=False).as_py()) >= 0:
            raise RequestError(f"syslog has no facility {facility[at]} with the severity {severity[at]}")
        priority = pc.add(pc.multiply(facility, 8), severity).cast(pa.string())
        written = _rfc5424 if self.options.write == "5424" else _rfc3164
        return concat("<", priority, ">", written(rows))


_PRIORITY_PARTS = ("facility", "severity")


def _extract_new(values: pa.BinaryArray) -> Extracted:
    """Messages of RFC 5424. RE2 takes ten times as long to find groups as to match: parts of a header are cut at its
    blanks.
    """
    texts, rows, bad = valid_texts(values)
    texts = without_line_ends(texts)
    matches = pc.match_substring_regex(texts, _NEW)
    is_match = matches.to_numpy(zero_copy_only=False)
    failed = dict.fromkeys(bad, NOT_UTF8) | dict.fromkeys(rows[~is_match].tolist(), _NOT_SYSLOG)
    parts = pc.split_pattern(texts if is_match.all() else texts.filter(matches), " ", max_splits=6)
    priority, *head, rest = (pc.list_element(parts, number) for number in range(7))
    groups = {"pri": pc.utf8_slice_codeunits(priority, 1, -2)}
    groups |= zip(("time", "host", "app", "procid", "msgid"), head, strict=True)
    groups |= _behind_header(rest)
    return Extracted(pa.StructArray.from_arrays([*groups.values()], [*groups]), rows[is_match], failed)


def _behind_header(rest: pa.StringArray) -> dict[str, pa.StringArray]:
    """The structured data, which usually is `-`, and the message."""
    if pc.all(pc.starts_with(rest, "-")).as_py():
        return {"structured": pc.utf8_slice_codeunits(rest, 0, 1), "message": pc.utf8_slice_codeunits(rest, 2)}
    found = pc.extract_regex(rest, _BEHIND_HEADER)
    return {name: pc.struct_field(found, [name]) for name in ("structured", "message")}


def _syslog(found: Extracted, *, is_new: bool) -> tuple[Columns, Rows]:
    priority = found.texts("pri").cast(pa.int32())
    time_texts = found.texts("time")
    time_texts = pc.if_else(pc.equal(time_texts, "-"), None, time_texts)
    times, wrong = _times(time_texts) if is_new else (pa.nulls(len(priority), arrow_type(TIMESTAMP)), set[int]())
    nothing = pa.nulls(len(priority), pa.string())
    structured = found.texts("structured") if is_new else nothing
    message = found.texts("message")
    if pc.any(pc.starts_with(message, _BOM)).as_py():
        message = pc.replace_substring_regex(message, f"^{_BOM}", "")
    arrays = [
        pc.divide(priority, 8).cast(pa.int32()),
        pc.subtract(priority, pc.multiply(pc.divide(priority, 8), 8)).cast(pa.int32()),
        times,
        time_texts,
        *(_dashed(found.texts(name)) for name in ("host", "app", "procid")),
        _dashed(found.texts("msgid")) if is_new else nothing,
        _structured(structured),
        message,
    ]
    is_bad = pc.or_(pc.greater_equal(priority, _PRIORITIES), pc.fill_null(_has_another_year(times), False))
    wrong |= set(np.flatnonzero(is_bad.to_numpy(zero_copy_only=False)).tolist())
    if not wrong:
        return Columns(arrays), found.rows
    good = np.setdiff1d(np.arange(len(priority)), [*wrong])
    failed = {int(found.rows[row]): _NOT_SYSLOG for row in wrong}
    return Columns([array.take(pa.array(good)) for array in arrays], failed), found.rows[good]


def _times(texts: pa.StringArray) -> tuple[pa.TimestampArray, set[int]]:
    """And the rows whose time does not exist, such as the 30th of February."""
    try:
        return texts.cast(pa.timestamp("us", "UTC")), set()
    except pa.ArrowException:
        found, bad = [], set[int]()
        for row, text in enumerate(texts.to_pylist()):
            try:
                found.append(None if text is None else timestamp(text))
            except ValueError:
                found.append(None)
                bad.add(row)
        return pa.array(found, pa.timestamp("us", "UTC")), bad


def _has_another_year(times: pa.TimestampArray) -> pa.BooleanArray:
    """Than those of four digits: so is the first or the last day of these in UTC, with an offset."""
    seconds = pc.floor_temporal(times, unit="second").cast(pa.timestamp("s", "UTC")).cast(pa.int64())
    return pc.or_(pc.less(seconds, _YEAR_1), pc.greater_equal(seconds, _YEAR_10000))


def _dashed(texts: pa.StringArray) -> pa.StringArray:
    return pc.if_else(pc.or_(pc.equal(texts, "-"), pc.equal(texts, "")), None, texts)


def _structured(texts: pa.StringArray) -> pa.MapArray:
    """Equal texts, such as `-`, are parsed once."""
    coded = texts.dictionary_encode()
    found = pa.array([*map(_elements, coded.dictionary.to_pylist()), []], arrow_type(_STRUCTURED))
    return found.take(coded.indices.fill_null(len(coded.dictionary)))


def _elements(text: str | None) -> list[tuple[str, list[tuple[str, str]]]]:
    found: dict[str, dict[str, str]] = {}
    for element in _OF_ELEMENT.findall(text) if text and text != "-" else ():
        name = element[1:].partition(" ")[0].rstrip("]")
        values = {key: _ESCAPED.sub(r"\1", value) for key, value in _PARAMETER.findall(element)}
        found.setdefault(name, {}).update(values)
    return [(name, [*values.items()]) for name, values in found.items()]


def _rfc5424(rows: Given) -> pa.StringArray:
    times = rows.instants("time").cast(pa.timestamp("us")).cast(pa.string())
    times = concat(pc.replace_substring(times, " ", "T"), "Z")
    times = rows.fitting(times, _TIME, "The year of a time must have four digits.")
    names = [pc.fill_null(_header_name(rows, name), "-") for name in _SIZES]
    return concat(
        "1 ",
        pc.fill_null(times, "-"),
        " ",
        *(part for name in names for part in (name, " ")),
        _written_structured(rows),
        optional(" ", _message(rows)),
    )


def _header_name(rows: Given, name: str) -> pa.StringArray:
    hint = f"`{name}` must have at most {_SIZES[name]} characters, and no spaces."
    return rows.fitting(without_empty(rows.texts(name)), rf"\S{{1,{_SIZES[name]}}}", hint)


def _message(rows: Given) -> pa.StringArray:
    """Whose reader removes one byte order mark, and one line end: a message that has these gets them twice."""
    texts = rows.texts("message")
    if pc.any(pc.starts_with(texts, _BOM)).as_py():
        texts = pc.replace_substring_regex(texts, rf"\A{_BOM}", _BOM * 2)
    if pc.any(pc.ends_with(texts, "\n")).as_py():
        texts = pc.replace_substring_regex(texts, r"\n\z", "\n\n")
    return texts


def _written_structured(rows: Given) -> pa.StringArray:
    column = rows.column("structured")
    if pa.types.is_map(column.type) and not len(map_parts(column)[1]):  # as usual
        return pa.array(["-"] * len(rows), pa.string())
    return pa.array([_written_elements(one) or "-" for one in python_values(column)], pa.string())


def _written_elements(elements: Mapping[str, Mapping[str, str | None] | None] | None) -> str:
    return "".join(
        f"[{_named(name)}{''.join(f' {_named(key)}={_quoted(value)}' for key, value in (values or {}).items())}]"
        for name, values in (elements or {}).items()
    )


def _named(name: str) -> str:
    if not _WHOLE_NAME.fullmatch(name):
        raise RequestError(
            f"syslog cannot write the name {name[:100]!r} of structured data",
            'It must have 1 to 64 characters, no spaces, and none of `= ] "`.',
        )
    return name


def _quoted(value: str | None) -> str:
    escaped_value = re.sub(r'(["\\\]])', r"\\\1", value or "")
    return f'"{escaped_value}"'


def _rfc3164(rows: Given) -> pa.StringArray:
    instants = pc.floor_temporal(rows.instants("time"), unit="second").cast(pa.timestamp("s", "UTC"))
    without_year = pc.strftime(instants, format="%b %e %H:%M:%S", locale="C")
    times = rows.complete("time", pc.coalesce(without_year, rows.texts("time_text")))
    rows.fitting(times, _OLD_TIME, "A time of RFC 3164 must look like `Jan  2 12:00:00`.")
    host, app, procid = (_header_name(rows, name) for name in ("host", "app", "procid"))
    app, procid = _of_old_tag(app, _OLD_APP), _of_old_tag(procid, _OLD_PROCID)
    message = pc.fill_null(_message(rows), "")
    is_tagged = pc.match_substring_regex(message, rf"\A{_OLD_APP}(?:\[{_OLD_PROCID}\])?:")
    nameless = pc.if_else(pc.or_(is_tagged, procid.is_valid()), "-", None)  # read as null
    tag = optional(pc.coalesce(app, nameless), optional("[", procid, "]"), ": ")
    return concat(times, " ", pc.fill_null(host, "-"), " ", tag, message)


def _of_old_tag(names: pa.StringArray, pattern: str) -> pa.StringArray:
    """With null for those that a tag of RFC 3164 cannot have."""
    return pc.if_else(pc.match_substring_regex(names, rf"\A{pattern}\z"), names, None)


# CEF

_HEADER = ("version", "vendor", "product", "product_version", "signature", "name", "severity")
_CEF_PART = r"[^|\\]*+(?:\\.[^|\\]*+)*+"
_CEF = re.compile(
    r"(?P<head>.*?)CEF:(?P<version>[0-9]{1,3})\|"
    + r"\|".join(f"(?P<{name}>{_CEF_PART})" for name in _HEADER[1:])
    + r"\|(?P<extension>.*)",
    re.DOTALL,
)
_CEF_NAME = re.compile(r"[\w.\[\]-]+")
_CEF_KEY = re.compile(rf"(?:^|(?<=\s))({_CEF_NAME.pattern})=")
_CEF_ESCAPE = re.compile(r"\\(.)", re.DOTALL)
_CEF_MEANT = {"n": "\n", "r": "\r"}


class Cef(FixedColumns):
    """`header` is what precedes `CEF:`, such as that of syslog. Spaces at the end of a value of the extension are
    written, and not read: lines often have several before the next key.
    """

    about = CODECS["cef"]
    of = (Field("header", STRING), *(Field(name, STRING) for name in _HEADER), Field("extension", TAGS))

    def decode(self, values: pa.BinaryArray) -> Columns:
        """Plain lines at once, and others one by one."""
        texts, rows, bad = valid_texts(values)
        data, offsets = bytes_and_offsets(texts)
        ends = tuple(np.empty(len(texts), np.int64) for _ in range(len(self.of) - 1))
        counts = np.empty(len(texts), np.int64)
        pairs = [np.empty(np.count_nonzero(data == ord("=")) + 1, np.int64) for _ in range(4)]
        found = cef_pairs(data, offsets, ends, counts, *pairs)
        keys, key_ends, items, item_ends = (of[:found] for of in pairs)
        is_plain = counts != NOT_PLAIN
        head_ends, *part_ends = (of[is_plain] for of in ends)
        starts = [head_ends + len("CEF:"), *(of + 1 for of in part_ends[:-1])]
        arrays = [
            without_empty(texts_at(data, offsets[:-1][is_plain], head_ends)),
            *(texts_at(data, *of) for of in zip(starts, part_ends, strict=True)),
            pa.MapArray.from_arrays(
                pa.array(np.concatenate(([0], np.cumsum(counts[is_plain]))), pa.int32()),
                texts_at(data, keys, key_ends),
                texts_at(data, items, item_ends),
            ),
        ]
        parts = [(Columns(arrays), rows[is_plain])]
        if not is_plain.all():
            parts.append(decoded_rows(values, rows[~is_plain], lambda of: row_by_row(of, _cef, self.of)))
        return merged(parts, dict.fromkeys(bad, NOT_UTF8))

    def write(self, rows: Given) -> pa.StringArray:
        header, version = (
            pc.fill_null(rows.texts("header"), ""),
            pc.fill_null(without_empty(rows.texts("version")), "0"),
        )
        is_message = pc.match_substring_regex(header, r"CEF:\d{1,3}\|")
        rows.refuse(header, is_message, "Its `CEF:` would be read as the beginning of the message.")
        rows.fitting(version, r"\d{1,3}", "A version must be a number of at most three digits.")
        parts = [_one_lined(escaped(pc.fill_null(rows.texts(name), ""), "\\|")) for name in _HEADER[1:]]
        extension = rows.pairs("extension", _written_cef_pairs, " ")
        return concat(header, "CEF:", pc.binary_join_element_wise(version, *parts, extension, "|"))


def _written_cef_pairs(keys: pa.StringArray, items: pa.StringArray) -> pa.StringArray:
    for key in keys.unique().to_pylist():
        if not _CEF_NAME.fullmatch(key):
            raise RequestError(
                f"cef cannot write the key {key[:100]!r}", "A key must have letters, digits, and `_ . - [ ]`."
            )
    return concat(keys, "=", _one_lined(escaped(items, "\\=")))


def _one_lined(texts: pa.StringArray) -> pa.StringArray:
    return pc.replace_substring(pc.replace_substring(texts, "\n", "\\n"), "\r", "\\r")


def _cef(value: bytes) -> tuple[Any, ...]:
    try:
        text = value.decode().removesuffix("\n").removesuffix("\r")
    except UnicodeDecodeError:
        raise Misfit("is not valid UTF-8") from None
    found = _CEF.fullmatch(text)
    if found is None:
        raise Misfit("is not CEF: CEF:0|vendor|product|version|signature|name|severity|extension")
    extension, keys = found["extension"], [*_CEF_KEY.finditer(found["extension"])]
    if extension[: keys[0].start() if keys else None].strip():
        raise Misfit("is not CEF: its extension does not begin with key=")
    ends = [*(key.start() for key in keys[1:]), len(extension)][: len(keys)]
    pairs = {key[1]: _cef_meant(extension[key.end() : end].rstrip(" ")) for key, end in zip(keys, ends, strict=True)}
    return (found["head"] or None, *(_cef_meant(found[name]) for name in _HEADER), [*pairs.items()])


def _cef_meant(text: str) -> str:
    return _CEF_ESCAPE.sub(lambda escape: _CEF_MEANT.get(escape[1], escape[1]), text) if "\\" in text else text


# GELF


class Gelf(FixedColumns):
    """Additional fields, whose names begin with `_`, are in `extra`, without it: numbers as texts. So are other fields
    that GELF does not know, unless there is an additional one of the same name.
    """

    about = CODECS["gelf"]
    of = (
        Field("version", STRING),
        Field("host", STRING),
        Field("short_message", STRING),
        Field("full_message", STRING),
        Field("time", TIMESTAMP),
        Field("level", INT),
        Field("extra", TAGS),
    )

    def decode(self, values: pa.BinaryArray) -> Columns:
        return row_by_row(values, _gelf, self.of)

    def write(self, rows: Given) -> pa.StringArray:
        version = strings(pc.fill_null(without_empty(rows.texts("version")), "1.1"))
        parts = [concat('{"version":', version)]
        parts += [concat(f',"{name}":', strings(rows.needed(name))) for name in ("host", "short_message")]
        parts += [optional(',"full_message":', strings(rows.texts("full_message")))]
        micros = rows.instants("time").cast(pa.int64())
        is_bad = pc.or_(pc.less(micros, 0), pc.greater_equal(micros, _EXACT_SECONDS * 1_000_000))
        rows.refuse(rows.instants("time").cast(pa.string()), is_bad, "A time must be one of 1970 to 2241.")
        seconds = pc.divide(micros.cast(pa.float64(), safe=False), 1_000_000)
        parts += [optional(',"timestamp":', seconds.cast(pa.string())), optional(',"level":', rows.texts("level"))]
        extra = rows.pairs(
            "extra", lambda keys, items: concat(",", strings(concat("_", keys)), ":", strings(items)), ""
        )
        return concat(*parts, extra, "}")


_GELF = msgspec.json.Decoder(dict[str, Any]).decode
_EXACT_SECONDS = 1 << 33
"""A number with more of them does not keep microseconds."""


def _gelf(value: bytes) -> tuple[Any, ...]:
    try:
        document = _GELF(value)
    except BAD:
        raise Misfit("is not a JSON object, as GELF is") from None
    for name in ("version", "host", "short_message"):
        if not isinstance(document.get(name), str):
            raise Misfit(f"is not GELF: `{name}` is not a text")
    full, level, seconds = document.get("full_message"), document.get("level"), document.get("timestamp")
    if not (full is None or isinstance(full, str)) or not (level is None or _is_level(level)):
        raise Misfit("is not GELF: `full_message` is a text, and `level` a whole number")
    if seconds is not None and (type(seconds) not in (int, float) or not 0 <= seconds < _EXACT_SECONDS):
        raise Misfit("is not GELF: `timestamp` is not a number of seconds from 1970 to 2241")
    time = None if seconds is None else min(round(seconds * 1_000_000), _EXACT_SECONDS * 1_000_000 - 1)
    known = ("version", "host", "short_message", "full_message", "timestamp", "level")
    extra = {
        key.removeprefix("_"): _text(each)
        for key, each in document.items()
        if key not in known and each is not None and (key.startswith("_") or document.get(f"_{key}") is None)
    }
    return document["version"], document["host"], document["short_message"], full, time, level, [*extra.items()]


def _is_level(level: Any) -> bool:
    return isinstance(level, int) and not isinstance(level, bool) and -(1 << 31) <= level < 1 << 31


def _text(value: Any) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()
