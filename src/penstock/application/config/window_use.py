"""Whether a pipeline's function uses windows or timers, read from its file without running it."""

import ast
from collections.abc import Iterator

_PACKAGE = "penstock"
_OWN = ("windows", "watermarked")
"""Names of Penstock: what its windows and its watermark are imported as."""
_SPARKS = ("window", "session_window")
"""Functions of Spark, by any name of their module."""


def uses_windows(tree: ast.Module, name: str) -> bool:
    """Whether the function of this name, or another of the same file that it names, uses windows in event time. Code
    that it imports is not looked at.
    """
    functions = {each.name: each for each in tree.body if isinstance(each, ast.FunctionDef)}
    known = {*_SPARKS, *_imported(tree)}
    waiting, seen = [name], {name}
    while waiting:
        function = functions.get(waiting.pop())
        used = set() if function is None else {*_used(function)}
        if used & known:
            return True
        new = (used & functions.keys()) - seen
        waiting += new
        seen |= new
    return False


def _imported(tree: ast.Module) -> Iterator[str]:
    """What the file calls Penstock's windows and their functions."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            for each in node.names:
                if node.module.startswith(f"{_PACKAGE}.windows") or (
                    node.module.partition(".")[0] == _PACKAGE and each.name in _OWN
                ):
                    yield each.asname or each.name
    yield from _OWN


def _used(function: ast.FunctionDef) -> Iterator[str]:
    """Names, and names of attributes."""
    for node in ast.walk(function):
        if isinstance(node, ast.Name):
            yield node.id
        elif isinstance(node, ast.Attribute):
            yield node.attr
