"""Writes the parts of docs/http-api.md and docs/metrics.md that are generated from the code.

    python script/references.py

Each page begins with text that people write. What follows the marker is replaced.
"""

import sys
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path

import msgspec

from penstock.worker.api_route import ApiRoute
from penstock.worker.openapi import described_routes, reply_of

DOCS = Path(__file__).parents[1] / "docs"

MARKER = "<!-- What follows is generated: python script/references.py -->\n"


def pages() -> dict[str, str]:
    """The pages as they should be, by name."""
    generated = {"http-api.md": http_api()}
    return {name: _with(DOCS / name, text) for name, text in generated.items()}


def _with(page: Path, lines: Iterator[str]) -> str:
    written, marker, _ = page.read_text(encoding="utf-8").partition(MARKER)
    assert marker, f"{page.name} has no marker"
    return written + marker + "".join(f"{line}\n" for line in lines)


# The HTTP API.


def http_api() -> Iterator[str]:
    for subject, routes in groupby(described_routes(), lambda route: route.contract.subject):
        yield from ("", f"## {subject.value}", "")
        if subject.text:
            yield from (subject.text, "")
        yield from _table(["request", "role", "takes", "what it does", "replies"], map(_row, routes))


def _row(route: ApiRoute) -> list[str]:
    text = " ".join(route.contract.description.split())
    return [f"`{route.method} {route.path}`", _role(route), "; ".join(_takes(route)), text, _reply(route)]


def _role(route: ApiRoute) -> str:
    return route.needs.replace("{name}", "`{name}`")


def _takes(route: ApiRoute) -> Iterator[str]:
    """The fields of the body, in brackets if they may be left out; then what may follow the path."""
    body = route.contract.body
    fields = () if body is None else msgspec.structs.fields(body)
    if fields:
        yield ", ".join(f"`{one.encode_name}`" if one.required else f"[`{one.encode_name}`]" for one in fields)
    for query in route.contract.query:
        yield f"`?{query.name}=`: {query.text}"


def _reply(route: ApiRoute) -> str:
    kind = reply_of(route)
    if kind is str:
        return "text"
    return f"`{kind.__name__}`" if isinstance(kind, type) and kind is not dict else "an object"


def _table(head: Sequence[str], rows: Iterator[list[str]]) -> Iterator[str]:
    yield f"| {' | '.join(head)} |"
    yield "|" + "---|" * len(head)
    for row in rows:
        yield f"| {' | '.join(row)} |"


def main() -> None:
    for name, text in pages().items():
        (DOCS / name).write_text(text, encoding="utf-8")
        sys.stdout.write(f"docs/{name}\n")


if __name__ == "__main__":
    main()
