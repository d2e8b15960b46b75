"""`script/check` runs this: a report of the tree's shape, and two checks that fail.

- The report counts what a newcomer stumbles over: crowded folders, very small and very large modules, modules that only
  one sibling imports, public classes of the same name in several packages. They are yardsticks, not limits.
- An import cycle fails, whether an import is for types alone or stands inside a function.
- A phrase of `script/vocabulary.txt` fails where that file forbids it.
"""

from __future__ import annotations

import ast
import re
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

FOLDER_FILES_MAX = 14
MODULE_LINES_MIN, MODULE_LINES_MAX = 40, 500
SHOWN_MAX = 3
"""The worst places of each kind; the count is of all."""

PACKAGE = "penstock"
PROSE = (
    *("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md", "docs/**/*.md"),
    *("sdk/node/*.md", "sdk/node/src/**/*.ts", "sdk/node/test/**/*.ts", "contrib/**/*", "examples/**/*"),
)
COMMANDS = (*PROSE, "src/**/*.py", "tests/**/*.py", "demo/**/*", "examples/**/*", "bench/**/*.py", "script/*")


@dataclass(frozen=True, slots=True)
class Module:
    """One file of the package, parsed."""

    name: str
    path: Path
    text: str
    tree: ast.Module

    @property
    def is_package(self) -> bool:
        return self.path.name == "__init__.py"

    @property
    def package(self) -> str:
        return self.name if self.is_package else self.name.rpartition(".")[0]

    @property
    def lines(self) -> int:
        return self.text.count("\n")


def read_modules(root: Path) -> dict[str, Module]:
    """Every module of the package below `root`/src, by its dotted name."""
    source = root / "src"
    modules = {}
    for path in sorted((source / PACKAGE).rglob("*.py")):
        parts = path.relative_to(source).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        text = path.read_text()
        modules[name] = Module(name, path, text, ast.parse(text, str(path)))
    return modules


def imports(module: Module, modules: Mapping[str, Module]) -> set[str]:
    """The package's modules that this one imports anywhere: at the top, for types, inside functions."""
    found = set()
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = _absolute(module, node)
            members = {f"{base}.{alias.name}" for alias in node.names}
            found |= members & modules.keys()
            if members - modules.keys():
                found.add(base)
    return (found & modules.keys()) - {module.name}


def _absolute(module: Module, node: ast.ImportFrom) -> str:
    if not node.level:
        return node.module or ""
    parents = module.package.split(".")
    base = parents[: len(parents) - node.level + 1]
    return ".".join([*base, *([node.module] if node.module else [])])


def import_graph(modules: Mapping[str, Module]) -> dict[str, set[str]]:
    return {name: imports(module, modules) for name, module in modules.items()}


def cycles(graph: Mapping[str, set[str]]) -> list[list[str]]:
    """The groups of modules that import one another, each as one round trip that can be followed."""
    return [_round_trip(graph, group) for group in _groups(graph)]


def _groups(graph: Mapping[str, set[str]]) -> Iterator[set[str]]:
    """Modules that reach one another; computed from what each can reach, which is fast enough for a few hundred."""
    reach = {name: _reachable(graph, name) for name in graph}
    seen: set[str] = set()
    for name in sorted(graph):
        if name in reach[name] and name not in seen:
            group = {other for other in reach[name] if name in reach[other]}
            seen |= group
            yield group


def _reachable(graph: Mapping[str, set[str]], start: str) -> set[str]:
    found: set[str] = set()
    waiting = list(graph[start])
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            waiting += graph[name]
    return found


def _round_trip(graph: Mapping[str, set[str]], group: set[str]) -> list[str]:
    """The shortest way from the group's first module back to it."""
    start = min(group)
    ways = [[start]]
    visited: set[str] = set()
    for way in ways:
        for name in sorted(graph[way[-1]] & group):
            if name == start:
                return [*way, start]
            if name not in visited:
                visited.add(name)
                ways.append([*way, name])
    raise AssertionError(f"{start} is in no cycle")


# The vocabulary

_TEST_NAME = re.compile(r"\bdef (test_\w+)")


@dataclass(frozen=True, slots=True)
class Finding:
    """A phrase where it must not be."""

    place: str
    line: int
    phrase: str

    def __str__(self) -> str:
        return f"{self.place}:{self.line}: {self.phrase!r}"


def read_vocabulary(path: Path) -> dict[str, list[str]]:
    """Phrases by section: a line `[section]`, then a phrase to a line. `#` begins a comment."""
    sections: dict[str, list[str]] = {}
    phrases: list[str] = []
    for number, line in enumerate(path.read_text().splitlines(), 1):
        text = line.partition("#")[0].strip()
        if text.startswith("["):
            name = text.strip("[]")
            if name not in SECTIONS:
                raise SystemExit(f"{path}:{number}: section [{name}] is not one of {', '.join(SECTIONS)}")
            phrases = sections.setdefault(name, [])
        elif text:
            phrases.append(text)
    return sections


def forbidden(root: Path, vocabulary: Mapping[str, list[str]], modules: Mapping[str, Module]) -> list[Finding]:
    found: list[Finding] = []
    for section, phrases in vocabulary.items():
        found += SECTIONS[section](root, modules, phrases)
    return sorted(found, key=str)


def _in_module_names(root: Path, modules: Mapping[str, Module], phrases: Iterable[str]) -> Iterator[Finding]:
    for name, module in modules.items():
        for phrase in phrases:
            if name.rpartition(".")[2] == phrase:
                yield Finding(str(module.path.relative_to(root)), 1, phrase)


def _in_commands(root: Path, modules: Mapping[str, Module], phrases: Iterable[str]) -> Iterator[Finding]:
    del modules
    return _in_files(root, COMMANDS, phrases)


def _in_docs(root: Path, modules: Mapping[str, Module], phrases: Iterable[str]) -> Iterator[Finding]:
    del modules
    return _in_files(root, PROSE, phrases)


def _in_files(root: Path, patterns: Iterable[str], phrases: Iterable[str]) -> Iterator[Finding]:
    expressions = _expressions(phrases)
    for path in sorted({path for pattern in patterns for path in root.glob(pattern) if path.is_file()}):
        if (
            path.suffix in (".py", ".md", ".yaml", ".yml", ".toml", ".sh", ".ts", "")
            and "__pycache__" not in path.parts
        ):
            yield from _search(str(path.relative_to(root)), 1, path.read_text(), expressions)


def _in_messages(root: Path, modules: Mapping[str, Module], phrases: Iterable[str]) -> Iterator[Finding]:
    """Every string of the package, docstrings included: what a user or a reader of the code may see."""
    expressions = _expressions(phrases)
    for module in modules.values():
        place = str(module.path.relative_to(root))
        for line, text in _strings(module.tree):
            yield from _search(place, line, text, expressions)


def _in_tests(root: Path, modules: Mapping[str, Module], phrases: Iterable[str]) -> Iterator[Finding]:
    """The names of tests are sentences."""
    del modules
    expressions = _expressions(phrases)
    for path in sorted((root / "tests").rglob("*.py")):
        text = path.read_text()
        for name in _TEST_NAME.finditer(text):
            line = text.count("\n", 0, name.start()) + 1
            yield from _search(str(path.relative_to(root)), line, name[1].replace("_", " "), expressions)


def _strings(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """With `{}` for what an f-string fills in. Strings inside such a field are found as well."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.lineno, node.value
        elif isinstance(node, ast.JoinedStr):
            parts = [part.value if isinstance(part, ast.Constant) else "{}" for part in node.values]
            yield node.lineno, "".join(map(str, parts))
            for part in node.values:
                if isinstance(part, ast.FormattedValue):
                    yield from _strings(part)
        else:
            yield from _strings(node)


def _expressions(phrases: Iterable[str]) -> dict[str, re.Pattern[str]]:
    """Whole words, in any case, across line breaks."""
    words = {phrase: r"\s+".join(map(re.escape, phrase.split())) for phrase in phrases}
    return {phrase: re.compile(rf"(?<!\w){each}(?!\w)", re.IGNORECASE) for phrase, each in words.items()}


def _search(place: str, first_line: int, text: str, expressions: Mapping[str, re.Pattern[str]]) -> Iterator[Finding]:
    for phrase, expression in expressions.items():
        for match in expression.finditer(text):
            yield Finding(place, first_line + text.count("\n", 0, match.start()), phrase)


SECTIONS = {
    "modules": _in_module_names,
    "command line": _in_commands,
    "messages": _in_messages,
    "docs": _in_docs,
    "tests": _in_tests,
}


# The yardsticks


def yardsticks(modules: Mapping[str, Module], graph: Mapping[str, set[str]]) -> list[str]:
    lines = {name: module.lines for name, module in modules.items()}
    code = {name: count for name, count in lines.items() if not modules[name].is_package}
    short = {name: count for name, count in code.items() if count < MODULE_LINES_MIN}
    long = {name: count for name, count in code.items() if count > MODULE_LINES_MAX}
    folders: dict[str, int] = defaultdict(int)
    for module in modules.values():
        folders[module.package] += 1
    crowded = {name: count for name, count in folders.items() if count > FOLDER_FILES_MAX}
    alone = sorted(single_importers(modules, graph).items())
    shared = sorted(same_names(modules).items())
    return [
        f"{sum(lines.values()):,} lines in {len(modules)} files of src/{PACKAGE}",
        _line(f"folders with more than {FOLDER_FILES_MAX} files", crowded, largest=True),
        _line(f"modules under {MODULE_LINES_MIN} lines", short, largest=False),
        _line(f"modules over {MODULE_LINES_MAX} lines", long, largest=True),
        _listing("modules that one sibling alone imports", [f"{name} by {by}" for name, by in alone]),
        _listing("names of public classes in several packages", [f"{name}: {', '.join(at)}" for name, at in shared]),
    ]


def single_importers(modules: Mapping[str, Module], graph: Mapping[str, set[str]]) -> dict[str, str]:
    """Modules that nobody but one module of the same package imports, by that module."""
    importers: dict[str, set[str]] = defaultdict(set)
    for name, imported in graph.items():
        for other in imported:
            importers[other].add(name)
    found = {}
    for name, names in importers.items():
        (first, *more) = sorted(names)
        if not more and not modules[name].is_package and modules[first].package == modules[name].package:
            found[name] = first.rpartition(".")[2] if first != modules[name].package else "__init__"
    return found


def same_names(modules: Mapping[str, Module]) -> dict[str, list[str]]:
    """Public classes that several packages define, with those packages."""
    places: dict[str, set[str]] = defaultdict(set)
    for module in modules.values():
        for node in module.tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].add(module.package.removeprefix(f"{PACKAGE}."))
    return {name: sorted(packages) for name, packages in places.items() if len(packages) > 1}


def _line(title: str, counts: Mapping[str, int], *, largest: bool) -> str:
    worst = sorted(counts, key=lambda name: counts[name], reverse=largest)
    return _listing(title, [f"{name} {counts[name]}" for name in worst])


def _listing(title: str, items: list[str]) -> str:
    short = [item.replace(f"{PACKAGE}.", "") for item in items[:SHOWN_MAX]]
    more = ", …" if len(items) > SHOWN_MAX else ""
    return f"{title}: {len(items)}" + (f" ({'; '.join(short)}{more})" if short else "")


def main(root: Path) -> int:
    modules = read_modules(root)
    graph = import_graph(modules)
    for line in yardsticks(modules, graph):
        print(f"house: {line}")
    found = cycles(graph)
    for trip in found:
        print(f"import cycle: {' → '.join(trip)}")
    phrases = forbidden(root, read_vocabulary(root / "script" / "vocabulary.txt"), modules)
    for finding in phrases:
        print(f"{finding} is in script/vocabulary.txt")
    return 1 if found or phrases else 0


if __name__ == "__main__":
    sys.exit(main(Path(__file__).parents[1]))
