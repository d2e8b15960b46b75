"""The broken configurations beside this file, each with all mistakes that must be reported."""

from dataclasses import dataclass
from pathlib import Path

FILES = {
    "counts.py": (
        "def count(lines): return lines\n"
        "def both(left, right, limit=3): return left\n"
        "def anything(*frames): return frames\n"
    ),
    "broken.py": "def (\n",
    "weak": "hunter2-hunter2-hunter2\n",
}
"""Beside the application."""
ENVIRON = {"PORT": "eighty-eighty", "TOKEN": "correct-horse-battery-staple", "HOST": "host-of-the-environment"}


@dataclass(frozen=True, slots=True)
class Case:
    title: str
    text: str
    said: str


def cases() -> list[Case]:
    """Each begins with `### title`; after `>>>` comes the expected report."""
    parts = Path(__file__).with_name("broken.txt").read_text().split("### ")[1:]
    return [_case(part) for part in parts]


def _case(part: str) -> Case:
    given, _, said = part.partition("\n>>>\n")
    title, _, text = given.partition("\n")
    return Case(title, text, said.strip())
