"""The peak of the memory that Spark's processes take: its JVM, and the Python processes that it has started."""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from penstock.bench.process import peak_rss_bytes

PROC = Path("/proc")


@dataclass(frozen=True, slots=True)
class Peak:
    """In bytes. `python` is that of the largest Python process, `pythons` their number."""

    jvm: int = 0
    python: int = 0
    pythons: int = 0

    def merged(self, other: "Peak") -> "Peak":
        return Peak(max(self.jvm, other.jvm), max(self.python, other.python), max(self.pythons, other.pythons))


def peak_of_spark() -> Peak:
    """Of the JVM that this process has started, and of its descendants that live now: what each has ever taken."""
    children = _children()
    peak = Peak()
    for jvm in filter(_is_java, children.get(os.getpid(), [])):
        sizes = [size for pid in _descendants(jvm, children) if (size := peak_rss_bytes(pid))]
        peak = peak.merged(Peak(peak_rss_bytes(jvm), max(sizes, default=0), len(sizes)))
    return peak


def _is_java(pid: int) -> bool:
    try:
        return (PROC / str(pid) / "comm").read_text().strip() == "java"
    except OSError:
        return False


def _descendants(pid: int, children: Mapping[int, Sequence[int]]) -> Iterator[int]:
    for child in children.get(pid, []):
        yield child
        yield from _descendants(child, children)


def _children() -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for directory in PROC.iterdir():
        if directory.name.isdigit() and (parent := _parent(directory)):
            found.setdefault(parent, []).append(int(directory.name))
    return found


def _parent(directory: Path) -> int:
    try:
        return int((directory / "stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0
