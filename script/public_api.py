"""The signatures of the public API, from the source: `tests/public_api.txt` is what it prints.

    python script/public_api.py > tests/public_api.txt

A change of that file is one that users see, and belongs in the changelog.
"""

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import griffe

ROOT = Path(__file__).parents[1]

OWN_NAMES = (
    "penstock",
    "penstock.spark",
    "penstock.windows",
    "penstock.dead_letters",
    "penstock.client",
    "penstock.client.segments",
    "penstock.connectors",
    "penstock.testing",
)
"""Modules that are public with the names that they list in `__all__`."""

NAMES = {
    "penstock.client.sink": ("lines", "read_committed"),
    "penstock.connectors.file": ("read_committed_parts",),
    "penstock.connectors.streams": ("first_of",),
    "penstock.core.kinds": ("STRING", "Field", "Fields"),
    "penstock.spark.codecs.api": ("Codec", "Columns", "Decode", "Encode"),
    "penstock.spark.codecs.codec": ("About",),
    "penstock.testing.codecs": ("CodecConformance",),
    "penstock.testing.conformance": ("ConnectorConformance",),
    "penstock.testing.frame": ("Frame",),
    "penstock.testing.peer": ("Line", "Peer"),
}
"""Names of other modules that the documentation asks users to import."""


class Public(NamedTuple):
    """A public name, and where it is defined."""

    module: str
    name: str
    defined: griffe.Object


@cache
def public_names() -> list[Public]:
    """Read from the source: nothing is imported, so the result is the same on every Python."""
    return [*_names()]


def _names() -> Iterator[Public]:
    root = griffe.load("penstock", search_paths=[ROOT / "src"], allow_inspection=False)
    for module in (*OWN_NAMES, *NAMES):
        found = root[module.removeprefix("penstock").removeprefix(".")] if module != "penstock" else root
        for name in NAMES.get(module) or _listed(found):
            yield Public(module, name, _defined(found[name]))


def _listed(module: griffe.Object | griffe.Alias) -> list[str]:
    return sorted(str(name) for name in module.exports or () if name != "__version__")


def _defined(found: griffe.Object | griffe.Alias) -> griffe.Object:
    return found.final_target if isinstance(found, griffe.Alias) else found


def lines() -> Iterator[str]:
    module = ""
    for public in public_names():
        if public.module != module:
            yield from (("",) if module else ())
            module = public.module
            yield f"# {module}"
        yield from _signature(public.name, public.defined)


def _signature(name: str, found: griffe.Object) -> Iterator[str]:
    match found:
        case griffe.Function():
            yield f"def {found.signature(name=name)}"
        case griffe.Class():
            bases = ", ".join(str(base) for base in found.bases)
            yield f"class {name}({bases})" if bases else f"class {name}"
            for member, inner in _members(found):
                yield from (f"    {line}" for line in _member(member, inner))
        case griffe.Module():
            yield f"module {name}"
        case _:
            yield f"{name}: {getattr(found, 'annotation', None) or 'constant'}"


def _members(found: griffe.Class) -> Iterator[tuple[str, griffe.Object]]:
    for name, member in sorted(found.all_members.items()):
        if name == "__init__" or not name.startswith("_"):
            yield name, _defined(member)


def _member(name: str, found: griffe.Object) -> Iterator[str]:
    if isinstance(found, griffe.Function):
        yield f"{'async ' if 'async' in found.labels else ''}def {found.signature(name=name)}"
    elif isinstance(found, griffe.Attribute) and "property" in found.labels:
        yield f"{name}: {found.annotation}  # property"
    elif isinstance(found, griffe.Attribute) and found.annotation is not None:
        yield f"{name}: {found.annotation}"


if __name__ == "__main__":
    print("\n".join(lines()))
