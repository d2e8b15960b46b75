"""`script/check` runs this: src/penstock uses Spark's public API alone, so that Spark Connect works and an update of
Spark breaks nothing by surprise.

What fails:

- a module of PySpark that its documentation does not name, except those in `UNDOCUMENTED`, each with its reason;
- a name with a leading underscore that PySpark or Py4J defines, wherever it is used: of another object, in `getattr`,
  or in a class that is derived from one of theirs;
- a class in the JVM that is not in `JAVA`;
- a text in `TEXTS` that Spark's class beside it does not contain any more, or that src/penstock does not.
"""

from __future__ import annotations

import ast
import importlib.util
import inspect
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from zipfile import ZipFile

sys.path.insert(0, str(Path(__file__).parents[1]))

from script.house import Module, read_modules

_ROOT = Path(__file__).parents[1]

LIBRARIES = ("pyspark", "py4j")

DOCUMENTED = (
    "py4j.protocol",
    "pyspark",
    "pyspark.errors",
    "pyspark.logger",
    "pyspark.sql",
    "pyspark.sql.datasource",
    "pyspark.sql.functions",
    "pyspark.sql.streaming",
    "pyspark.sql.types",
)
"""Modules of the API reference, with those below `pyspark.sql.streaming`, whose classes that one shows."""

UNDOCUMENTED = {
    "pyspark.cloudpickle": "the user's functions have to be pickled by the pickler that Spark uses",
    "pyspark.daemon": "the module that `spark.python.daemon.module` names calls Spark's own, with more imported before",
    "pyspark.java_gateway": "its `launch_gateway` is how a JVM gets another stderr; its docstring offers it for that",
    "pyspark.sql.pandas.types": "Arrow's types for Spark's, as Spark converts them",
}

JAVA = ("org.apache.hadoop", "org.apache.spark.SparkContext", "org.apache.spark.api.java")
"""Public classes in Java: Hadoop's file systems, the context that has their configuration, and Spark's API for Java,
whose RDDs run programs on executors.
"""

TEXTS = {
    "spark.watermarkDelayMs": (
        "catalyst/plans/logical/EventTimeWatermark$",
        "the key in a column's metadata by which `withWatermark` marks it, and `penstock.watermarked` too",
    ),
    "streaming.sql.batchId": (
        "execution/streaming/runtime/MicroBatchExecution$",
        "the local property with the number of a task's batch: Spark passes it to no function",
    ),
    "rocksdbLoadLatencyMs": (
        "execution/streaming/state/RocksDBStateStoreProvider$",
        "a metric of the state store, for what `penstock run` shows",
    ),
    "== Analyzed Logical Plan ==": (
        "execution/QueryExecution",
        "`explain` prints the plan, from which the operators with state are read: no public API shows them",
    ),
    "== Optimized Logical Plan ==": ("execution/QueryExecution", "what follows the analyzed plan there"),
}
"""Internals of Spark that are used as texts: text → the class below `org.apache.spark.sql` that has it, and the reason.
What `explain` prints of each operator is tested with the installed Spark (`tests/spark/test_plan_text.py`).
"""

_PRIVATE = re.compile(r"(?:\.|\bdef )(_[A-Za-z]\w*)")
_BY_NAME = ("getattr", "setattr", "hasattr", "delattr", "attrgetter")
_OF_TUPLES = {"_asdict", "_fields", "_make", "_replace"}
"""Python's public names of named tuples."""
_TESTS = {"tests", "proto"}


@dataclass(frozen=True, slots=True)
class Finding:
    path: Path
    line: int
    text: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.text}"


@cache
def private_names() -> frozenset[str]:
    """All names with a leading underscore that the installed PySpark and Py4J define."""
    found: set[str] = set()
    for library in LIBRARIES:
        spec = importlib.util.find_spec(library)
        if spec is None or spec.origin is None:
            sys.exit(f"{library} is not installed: script/setup installs it")
        for file in Path(spec.origin).parent.rglob("*.py"):
            if not _TESTS.intersection(file.parts):
                found.update(_PRIVATE.findall(file.read_text()))
    return frozenset(found - _OF_TUPLES)


def findings(root: Path) -> Iterator[Finding]:
    for module in read_modules(root).values():
        for node in ast.walk(module.tree):
            for text in _findings(module, node):
                assert isinstance(node, ast.stmt | ast.expr)
                yield Finding(module.path.relative_to(root), node.lineno, text)


def _findings(module: Module, node: ast.AST) -> Iterator[str]:
    match node:
        case ast.Import(names=names):
            for alias in names:
                yield from _imported(alias.name, [])
        case ast.ImportFrom(module=str(name), names=names, level=0):
            yield from _imported(name, [alias.name for alias in names])
        case ast.Attribute(attr=name) if _is_private(name) and not _is_own(node.value):
            yield f"{ast.unparse(node)}: {name} is private in Spark"
        case ast.Attribute(value=ast.Attribute(attr="jvm")):
            yield from _in_java(module, node)
        case ast.Call(func=ast.Name(id=called) | ast.Attribute(attr=called)) if called in _BY_NAME:
            texts = [one.value for one in node.args if isinstance(one, ast.Constant) and isinstance(one.value, str)]
            yield from (f"{ast.unparse(node)}: {name} is private in Spark" for name in texts if _is_private(name))
        case ast.ClassDef():
            yield from _derived(module, node)


def _derived(module: Module, node: ast.ClassDef) -> Iterator[str]:
    theirs = [base for base in map(partial(_class, module), node.bases) if base is not None]
    private = {name for base in theirs for name in _private_names(base)}
    own = {_own_name(inner) for inner in ast.walk(node)} - {None}
    for name in sorted(private.intersection(map(str, own))):
        yield f"{node.name}.{name}: {name} is private in {', '.join(base.__name__ for base in theirs)}"


def _imported(module: str, names: list[str]) -> Iterator[str]:
    if not _is_theirs(module):
        return
    for each in [module, *(f"{module}.{name}" for name in names if _is_module(f"{module}.{name}"))]:
        is_known = each in DOCUMENTED or each in UNDOCUMENTED or each.startswith("pyspark.sql.streaming.")
        if not is_known or "._" in each:
            yield f"{each} is not a documented module: see {Path(__file__).name}"
    yield from (f"{module}.{name} is private" for name in names if name.startswith("_"))


@cache
def _is_module(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:  # it is a class in a module
        return False


def _is_theirs(name: str) -> bool:
    return name.partition(".")[0] in LIBRARIES


def _is_private(name: str) -> bool:
    return not name.startswith("__") and name in private_names()


def _is_own(value: ast.expr) -> bool:
    """Whether it is the object or the class itself."""
    is_super = isinstance(value, ast.Call) and isinstance(value.func, ast.Name) and value.func.id == "super"
    return is_super or (isinstance(value, ast.Name) and value.id in ("self", "cls"))


def _class(module: Module, base: ast.expr) -> type | None:
    """The class of theirs that is imported by this name."""
    for node in ast.walk(module.tree):
        if isinstance(node, ast.ImportFrom) and node.module is not None and _is_theirs(node.module):
            for alias in node.names:
                if (alias.asname or alias.name) == ast.unparse(base):
                    found = getattr(importlib.import_module(node.module), alias.name)
                    return found if isinstance(found, type) else None
    return None


@cache
def _private_names(kind: type) -> frozenset[str]:
    """What the class itself defines or sets."""
    names = {*dir(kind), *re.findall(r"self\.(_\w+)", inspect.getsource(kind))}
    return frozenset(name for name in names if re.fullmatch(r"_[A-Za-z]\w*", name))


def _own_name(node: ast.AST) -> str | None:
    """What a class defines or uses of itself."""
    if isinstance(node, ast.FunctionDef):
        return node.name
    return node.attr if isinstance(node, ast.Attribute) and _is_own(node.value) else None


def _in_java(module: Module, node: ast.Attribute) -> Iterator[str]:
    """`node` is the first name after `jvm`: looks at all that follow it."""
    chain: ast.expr = node
    for one in ast.walk(module.tree):
        if isinstance(one, ast.Attribute) and any(inner is node for inner in ast.walk(one)):
            chain = max(chain, one, key=lambda each: len(ast.unparse(each)))
    name = re.split(r"\.jvm\.", ast.unparse(chain), maxsplit=1)[1].partition("(")[0]
    if not name.startswith(JAVA):
        yield f"{name} is not a public class of Spark's or Hadoop's"


def texts_gone(root: Path, texts: Mapping[str, tuple[str, str]] = TEXTS) -> Iterator[str]:
    code = "".join(path.read_text() for path in sorted((root / "src" / "penstock" / "spark").rglob("*.py")))
    for text, (name, why) in texts.items():
        if text not in code:
            yield f"{text!r} is not used any more: take it from {Path(__file__).name}"
        if text.encode() not in _class_file(name):
            yield f"{text!r} is not in Spark's class {name} any more: {why}"


def _class_file(name: str) -> bytes:
    """Of a class of Spark's: its texts are in it as they are. Empty if there is no such class."""
    spec = importlib.util.find_spec("pyspark")
    assert spec is not None
    assert spec.origin is not None
    for jar in Path(spec.origin).parent.glob("jars/spark-*.jar"):
        with ZipFile(jar) as classes, suppress(KeyError):
            return classes.read(f"org/apache/spark/sql/{name}.class")
    return b""


def main(root: Path) -> int:
    found = [*map(str, findings(root)), *(texts_gone(root) if root == _ROOT else ())]
    for finding in found:
        print(finding)
    if not found:
        print("spark: public API alone")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(_ROOT))
