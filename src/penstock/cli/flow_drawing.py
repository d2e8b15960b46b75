"""The flow of an application as text: sources, the pipelines that read them, and where each port goes. Pure.

orders (http-server, at-least-once)
└─ per-shop, windows fused with the readers
├─ out → turnover (file, exactly-once, transactional)
├─ err: stored as pipeline:per-shop/err
└─ late: stored as pipeline:per-shop/late
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

_PIPELINE = "pipeline:"
"""The prefix of a source that is the output of a pipeline."""


@dataclass(frozen=True, slots=True)
class Step:
    """A pipeline."""

    name: str
    note: str
    """Shown after its name."""
    sources: Sequence[str]
    ports: Sequence[str]
    sinks: Mapping[str, str]
    """Name → the port that it is bound to."""
    about: Mapping[str, str] = field(default_factory=dict)
    """Type and guarantee of its sources and sinks by name, if known."""

    def named(self, name: str) -> str:
        return f"{name} ({self.about[name]})" if name in self.about else name


@dataclass(frozen=True, slots=True)
class _Branch:
    text: str
    below: "tuple[_Branch, ...]" = ()


def drawn(steps: Sequence[Step]) -> list[str]:
    """The lines. A pipeline that can be reached from several sources is drawn once."""
    flow = _Flow(steps)
    roots = {source: one.named(source) for one in steps for source in one.sources if not flow.is_output(source)}
    branches = [_Branch(text, tuple(flow.readers(source))) for source, text in roots.items()]
    # Pipelines that no outside source leads to: those without sources, and those that read each other in a circle.
    branches += [flow.pipeline(one) for one in steps if one.name not in flow.seen]
    return [line for branch in branches for line in (branch.text, *_lines(branch.below, ""))]


class _Flow:
    def __init__(self, steps: Sequence[Step]) -> None:
        self.seen: set[str] = set()
        """Pipelines that have been drawn."""
        self._steps = steps
        self._names = {one.name for one in steps}

    def is_output(self, source: str) -> bool:
        """Whether it is written by one of these pipelines."""
        return source.startswith(_PIPELINE) and source.removeprefix(_PIPELINE).partition("/")[0] in self._names

    def readers(self, source: str) -> Iterator[_Branch]:
        yield from (self.pipeline(one) for one in self._steps if source in one.sources)

    def pipeline(self, one: Step) -> _Branch:
        if one.name in self.seen:
            return _Branch(f"{one.name} (above)")
        self.seen.add(one.name)
        text = f"{one.name}, {one.note}" if one.note else one.name
        ports = dict.fromkeys([*one.ports, *one.sinks.values()])
        return _Branch(text, tuple(branch for port in ports for branch in self._port(one, port)))

    def _port(self, one: Step, port: str) -> Iterator[_Branch]:
        sinks = [name for name, bound in one.sinks.items() if bound == port]
        output = f"{_PIPELINE}{one.name}/{port}"
        readers = tuple(self.readers(output))
        yield from (_Branch(f"{port} → {one.named(name)}") for name in sinks)
        if readers:
            yield _Branch(f"{port}, read by", readers)
        elif not sinks:
            yield _Branch(f"{port}: stored as {output}")


def _lines(branches: Sequence[_Branch], indent: str) -> Iterator[str]:
    for number, branch in enumerate(branches, 1):
        is_last = number == len(branches)
        yield f"{indent}{'└─' if is_last else '├─'} {branch.text}"
        yield from _lines(branch.below, f"{indent}{'   ' if is_last else '│  '}")
