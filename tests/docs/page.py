"""A page of the documentation as a list of steps that a reader would take.

    ```yaml              a block that begins with `# NAME` is a file: the reader saves it
    # shop.yaml
    ```

    ```console           a shell session: commands, each with what it prints
    $ penstock check shop.yaml
    shop.yaml is valid
    ```

    ```console           what the command that was started last, and keeps running, prints next
    …
    ready: per-shop reads orders
    ```

In printed output `…` stands for any text, and on a line of its own for any lines. Times, dates, durations, sizes and
long ids differ from run to run and match any other of their kind; runs of blanks and of table borders match any width.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path

_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_FILE_NAME = re.compile(r"# ([\w./-]+\.(?:py|yaml|json|sql))")
_FILES = ("python", "yaml", "json", "sql")
_PROMPT = "$ "
_CONTINUED = "> "


@dataclass(frozen=True, slots=True)
class File:
    """What the reader saves under a name."""

    name: str
    text: str


@dataclass(frozen=True, slots=True)
class Printed:
    """What the first terminal prints by then, beside other lines."""

    line: int
    output: str


@dataclass(frozen=True, slots=True)
class Command:
    """What the reader types, and what the page says it prints."""

    line: int
    text: str
    output: str


def steps(page: Path) -> Iterator[File | Command | Printed]:
    """In the order of the page. Blocks that are neither a file nor a session are not steps."""
    text = page.read_text(encoding="utf-8")
    for block in _BLOCK.finditer(text):
        language, body = block[1], block[2]
        first_line = text.count("\n", 0, block.start(2)) + 1
        if language == "console" and body.startswith("…\n"):
            yield Printed(first_line, body)
        elif language == "console":
            yield from _commands(body.splitlines(), first_line)
        elif language in _FILES and (name := _FILE_NAME.match(body)):
            yield File(name[1], body)


def _commands(lines: list[str], first_line: int) -> Iterator[Command]:
    assert lines[0].startswith(_PROMPT), f"line {first_line}: a session begins with `{_PROMPT}`, found {lines[0]!r}"
    starts = [number for number, line in enumerate(lines) if line.startswith(_PROMPT)]
    for start, end in zip(starts, [*starts[1:], len(lines)], strict=True):
        continued = list(takewhile(lambda line: line.startswith(_CONTINUED), lines[start + 1 : end]))
        typed = [lines[start].removeprefix(_PROMPT), *(line.removeprefix(_CONTINUED) for line in continued)]
        printed = lines[start + 1 + len(continued) : end]
        yield Command(first_line + start, "\n".join(typed), "\n".join(printed))


_VARYING = [
    r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?",
    r"\d\d:\d\d:\d\d(?:\.\d+)?",
    r"\d+(?:\.\d+)? (?:µs|ms|s|min|h)\b",
    r"[\d.,]+ (?:B|[kKMG]i?B)\b",
    r"\b[\d.,]+/s\b",
    r"\b[0-9a-f]{8,}(?:-[0-9a-f]{4,})*\b",
    r"127\.0\.0\.1:\d+",
    r"\bport \d+",
]
"""What differs from run to run: matches any other text of its own kind."""

_TOKEN = re.compile("|".join(f"(?P<v{number}>{kind})" for number, kind in enumerate(_VARYING)) + r"|(?P<any>…)")


def matches(output: str, printed: str) -> bool:
    """Whether a program printed what the page says."""
    wanted = [_pattern(line) for line in _lines(output)]
    return re.fullmatch("".join(wanted), "".join(f"{line}\n" for line in _lines(printed))) is not None


def _lines(text: str) -> list[str]:
    """Without what only fills a terminal's width, and without empty lines at either end."""
    return [re.sub(r"\s+|([─━])\1+", lambda run: run[1] or " ", line).strip() for line in text.strip().splitlines()]


def _pattern(line: str) -> str:
    if line == "…":
        return r"(?:.*\n)*?"
    parts, end = [], 0
    for token in _TOKEN.finditer(line):
        parts += [re.escape(line[end : token.start()]), _kind(token)]
        end = token.end()
    return "".join([*parts, re.escape(line[end:]), r"\n"])


def _kind(token: re.Match[str]) -> str:
    return ".*" if token.lastgroup == "any" else _VARYING[int((token.lastgroup or "v0").removeprefix("v"))]
