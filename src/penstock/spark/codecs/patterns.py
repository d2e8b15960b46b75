"""Text by patterns: the named groups of a regular expression are columns. RE2 matches a whole batch at once."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.core.errors import RequestError
from penstock.core.kinds import STRING, Field, Fields, Kind, arrow_type
from penstock.spark.codecs.api import Codec, Columns, Decode, Encode
from penstock.spark.codecs.arrow_texts import valid_texts, without_empty, without_line_ends
from penstock.spark.codecs.codec import CODECS
from penstock.spark.codecs.scalars import in_range

NOT_UTF8 = "is not valid UTF-8"


class Extracted(NamedTuple):
    """The groups of the events that match, and why the others failed."""

    groups: pa.StructArray
    rows: np.ndarray[tuple[int], np.dtype[np.int64]]
    """Their numbers."""
    failed: dict[int, str]

    def texts(self, name: str) -> pa.StringArray:
        return pc.struct_field(self.groups, [name])

    def present(self, name: str) -> pa.StringArray:
        """With null for a group that has matched nothing."""
        return without_empty(self.texts(name))


def extract(values: pa.BinaryArray, pattern: str, reason: str) -> Extracted:
    """Matches each event as a whole, without one line end after it."""
    texts, rows, bad = valid_texts(values)
    found = pc.extract_regex(without_line_ends(texts), rf"(?s)\A(?:{pattern})\z")
    is_match = found.is_valid().to_numpy(zero_copy_only=False)
    failed = dict.fromkeys(bad, NOT_UTF8) | dict.fromkeys(rows[~is_match].tolist(), reason)
    return Extracted(found.filter(pa.array(is_match)) if not is_match.all() else found, rows[is_match], failed)


def check_pattern(pattern: str) -> list[str]:
    """The names of its groups. Raises RequestError."""
    try:
        kind = pc.extract_regex(pa.array([""]), pattern).type
    except pa.ArrowException as error:
        raise RequestError(f"not a valid pattern: {str(error).strip()}", "Patterns are those of RE2.") from None
    return [kind.field(number).name for number in range(kind.num_fields)]


class Regex(Codec):
    about = CODECS["regex"]

    def fields(self, schema: Fields | None) -> Fields:  # noqa: ARG002
        return tuple(Field(name, STRING) for name in check_pattern(self.options.pattern))

    def check(self) -> None:
        check_pattern(self.options.pattern)

    def decoder(self, schema: Fields | None) -> Decode:
        names, pattern = [field.name for field in self.fields(schema)], self.options.pattern

        def decode(values: pa.BinaryArray) -> Columns:
            found = extract(values, pattern, "does not match the pattern")
            return Columns([found.present(name) for name in names], found.failed)

        return decode

    def encoder(self, columns: pa.Schema) -> Encode:
        raise RequestError(
            f"{self.about.name} cannot write {', '.join(columns.names)}",
            "Write the text yourself, with the codec string.",
        )


# grok

_REFERENCE = re.compile(r"%\{(\w+)(?::([\w.@\[\]-]+))?(?::(\w+))?\}")
_LEVELS_MAX = 20
_TYPES = {"int": Kind("bigint"), "long": Kind("bigint"), "float": Kind("double"), "double": Kind("double")}

_GROK: Mapping[str, str] = {
    "WORD": r"\b\w+\b",
    "NOTSPACE": r"\S+",
    "SPACE": r"\s*",
    "DATA": r".*?",
    "GREEDYDATA": r".*",
    "INT": r"[+-]?\d+",
    "POSINT": r"\b[1-9]\d*\b",
    "NONNEGINT": r"\b\d+\b",
    "NUMBER": r"[+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?",
    "BASE16NUM": r"(?:0[xX])?[0-9A-Fa-f]+",
    "USERNAME": r"[a-zA-Z0-9._-]+",
    "USER": r"%{USERNAME}",
    "EMAILLOCALPART": r"[a-zA-Z0-9!#$%&'*+\-/=?^_`{|}~]+(?:\.[a-zA-Z0-9!#$%&'*+\-/=?^_`{|}~]+)*",
    "EMAILADDRESS": r"%{EMAILLOCALPART}@%{HOSTNAME}",
    "QUOTEDSTRING": r"\"(?:[^\"\\]|\\.)*\"|'(?:[^'\\]|\\.)*'",
    "QS": r"%{QUOTEDSTRING}",
    "UUID": r"[A-Fa-f0-9]{8}-(?:[A-Fa-f0-9]{4}-){3}[A-Fa-f0-9]{12}",
    "MAC": r"(?:[A-Fa-f0-9]{2}[:-]){5}[A-Fa-f0-9]{2}",
    "IPV4": r"(?:(?:25[0-5]|2[0-4]\d|1?\d?\d)\.){3}(?:25[0-5]|2[0-4]\d|1?\d?\d)",
    "IPV6": r"[0-9A-Fa-f:.]*:[0-9A-Fa-f:.]+",
    "IP": r"%{IPV6}|%{IPV4}",
    "HOSTNAME": r"\b(?:[0-9A-Za-z][0-9A-Za-z-]{0,62})(?:\.[0-9A-Za-z][0-9A-Za-z-]{0,62})*\.?",
    "IPORHOST": r"%{IP}|%{HOSTNAME}",
    "HOSTPORT": r"(?:%{IPORHOST}):%{POSINT}",
    "PATH": r"(?:/[^\s?*]*)+|[A-Za-z]+:(?:\\[^\\?*]*)+",
    "UNIXPATH": r"(?:/[^\s?*]*)+",
    "URIPROTO": r"[A-Za-z][A-Za-z0-9+.-]*",
    "URIHOST": r"(?:%{IPORHOST})(?::%{POSINT})?",
    "URIPATH": r"(?:/[^\s?#]*)+",
    "URIPARAM": r"\?\S*",
    "URIPATHPARAM": r"%{URIPATH}(?:%{URIPARAM})?",
    "URI": r"%{URIPROTO}://(?:%{USER}(?::[^@]*)?@)?(?:%{URIHOST})?(?:%{URIPATHPARAM})?",
    "MONTH": r"\b(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)[a-z]*\b",
    "MONTHNUM": r"0?[1-9]|1[0-2]",
    "MONTHDAY": r"0[1-9]|[12]\d|3[01]|[1-9]",
    "DAY": r"\b(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun)[a-z]*\b",
    "YEAR": r"(?:\d\d){1,2}",
    "HOUR": r"2[0-3]|[01]?\d",
    "MINUTE": r"[0-5]\d",
    "SECOND": r"(?:[0-5]?\d|60)(?:[:.,]\d+)?",
    "TIME": r"(?:%{HOUR}):%{MINUTE}(?::%{SECOND})?",
    "ISO8601_TIMEZONE": r"Z|[+-](?:%{HOUR}):?%{MINUTE}",
    "TIMESTAMP_ISO8601": r"%{YEAR}-(?:%{MONTHNUM})-(?:%{MONTHDAY})[T ]"
    r"(?:%{HOUR}):?%{MINUTE}(?::?%{SECOND})?(?:%{ISO8601_TIMEZONE})?",
    "SYSLOGTIMESTAMP": r"%{MONTH} +(?:%{MONTHDAY}) %{TIME}",
    "HTTPDATE": r"(?:%{MONTHDAY})/%{MONTH}/%{YEAR}:%{TIME} [+-]\d{4}",
    "LOGLEVEL": r"(?i:trace|debug|info|notice|warn(?:ing)?|err(?:or)?|crit(?:ical)?|fatal|severe|alert|emerg(?:ency)?)",
    "HTTPDUSER": r"%{EMAILADDRESS}|%{USER}",
    "COMMONAPACHELOG": r"(?:%{IPORHOST:clientip}) (?:%{HTTPDUSER:ident}) (?:%{HTTPDUSER:auth}) "
    r"\[%{HTTPDATE:timestamp}\] "
    r"\"(?:%{WORD:verb} %{NOTSPACE:request}(?: HTTP/%{NUMBER:httpversion})?|%{DATA:rawrequest})\" "
    r"(?:-|%{NUMBER:response:int}) (?:-|%{NUMBER:bytes:int})",
    "COMBINEDAPACHELOG": r"%{COMMONAPACHELOG} \"%{DATA:referrer}\" \"%{DATA:agent}\"",
}
"""The usual patterns, written for RE2."""


class Grok(Codec):
    about = CODECS["grok"]

    def fields(self, schema: Fields | None) -> Fields:  # noqa: ARG002
        return self._expanded()[1]

    def decoder(self, schema: Fields | None) -> Decode:  # noqa: ARG002
        pattern, fields = self._expanded()

        def decode(values: pa.BinaryArray) -> Columns:
            found = extract(values, pattern, "does not match the pattern")
            arrays, bad = [], set[int]()
            for number, field in enumerate(fields):
                array, wrong = _converted(found.present(_group(number)), field.kind)
                arrays.append(array)
                bad |= wrong
            if not bad:
                return Columns(arrays, found.failed)
            good = pa.array(np.setdiff1d(np.arange(len(found.rows)), [*bad]))
            failed = {int(found.rows[row]): "has a number that does not fit its type" for row in bad}
            return Columns([array.take(good) for array in arrays], found.failed | failed)

        return decode

    def encoder(self, columns: pa.Schema) -> Encode:
        raise RequestError(
            f"grok cannot write {', '.join(columns.names)}", "Write the text yourself, with the codec string."
        )

    def check(self) -> None:
        self._expanded()

    def _expanded(self) -> tuple[str, Fields]:
        """The pattern for RE2, and its fields. Raises RequestError."""
        known, found = {**_GROK, **self.options.patterns}, dict[str, Kind]()

        def expanded(text: str, level: int) -> str:
            if level > _LEVELS_MAX:
                raise RequestError("a grok pattern contains itself", "Look at `patterns`.")

            def replaced(match: re.Match[str]) -> str:
                name, field, kind = match.groups()
                if name not in known:
                    raise RequestError(f"there is no grok pattern {name}", f"Available: {', '.join(sorted(known))}.")
                inner = expanded(known[name], level + 1)
                if field is None:
                    return f"(?:{inner})"
                if field in found:
                    raise RequestError(f"the grok pattern has two fields {field}", "Name each once.")
                if kind is not None and kind not in (*_TYPES, "string"):
                    raise RequestError(f"{kind} is not a type of grok", "Write int, float or string.")
                found[field] = _TYPES.get(kind or "", STRING)
                return f"(?P<{_group(len(found) - 1)}>{inner})"

            return _REFERENCE.sub(replaced, text)

        pattern = expanded(self.options.pattern, 0)
        if not found:
            raise RequestError("the grok pattern has no named field", "Name what should be a column: %{IP:client}.")
        check_pattern(pattern)
        return pattern, tuple(Field(name, kind) for name, kind in found.items())


def _group(number: int) -> str:
    return f"g{number}"


def _converted(texts: pa.StringArray, kind: Kind) -> tuple[pa.Array, set[int]]:
    """With null for the rows whose number does not fit, which are the others."""
    try:
        return texts.cast(arrow_type(kind)), set()
    except pa.ArrowException:
        numbers: list[int | float | None] = []
        bad = set[int]()
        for row, text in enumerate(texts.to_pylist()):
            try:
                numbers.append(
                    None if text is None else in_range(int(text), 64) if kind.name == "bigint" else float(text)
                )
            except ValueError:
                numbers.append(None)
                bad.add(row)
        return pa.array(numbers, arrow_type(kind)), bad
