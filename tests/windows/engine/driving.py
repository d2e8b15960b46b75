"""Runs the engine as Spark would: rows spread over mapper tasks, a reducer for each bucket."""

import random
from collections.abc import Iterable, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.windows.engine import Advanced, Plan, Stats, advance, prepare


@dataclass
class DictState:
    """A bucket's state in memory; counts what was written."""

    data: dict[int, bytes] = field(default_factory=dict)
    head: bytes | None = None
    puts: list[int] = field(default_factory=list)

    def index(self) -> bytes | None:
        return self.head

    def put_index(self, data: bytes) -> None:
        self.head = data

    def get(self, window: int) -> bytes | None:
        return self.data.get(window)

    def put(self, window: int, data: bytes) -> None:
        self.data[window] = data
        self.puts.append(window)

    def remove(self, window: int) -> None:
        del self.data[window]


def table_of(plan: Plan, rows: Sequence[dict[str, Any]]) -> pa.Table:
    """Rows with `t`, and the plan's columns; the bucket is a hash of the keys."""
    columns = {name: pa.array([row[name] for row in rows], plan.schema.field(name).type) for name in plan.schema.names}
    buckets = [_bucket(plan, row) for row in rows]
    return pa.table(
        columns | {"t": pa.array([row["t"] for row in rows], pa.int64()), "b": pa.array(buckets, pa.int32())}
    )


def _bucket(plan: Plan, row: dict[str, Any]) -> int:
    parts = [None if row[name] != row[name] else row[name] for name in plan.keys]
    return hash(tuple(0 if part is None else part for part in parts)) % plan.buckets


class Driver:
    """A pipeline's windows, batch after batch."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.states = [DictState() for _ in range(plan.buckets)]
        self.watermark: int | None = None
        self.stats: list[Stats] = []

    def batch(
        self, tasks: Iterable[Sequence[dict[str, Any]]], after: int | None
    ) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        """Panes and late rows, of all buckets."""
        results = self.attempt(self.states, tasks, after)
        self.watermark = after
        self.stats = [each.stats for each in results]
        panes = pa.concat_tables(each.panes for each in results)
        return panes.to_pylist(), pa.concat_tables(each.late for each in results).to_pylist()

    def attempt(
        self, states: list[DictState], tasks: Iterable[Sequence[dict[str, Any]]], after: int | None
    ) -> list[Advanced]:
        """One attempt, on these states only."""
        blobs = [prepare(self.plan, table_of(self.plan, rows), self.watermark).partials for rows in tasks if rows]
        return [
            advance(self.plan, bucket, state, [each[bucket] for each in blobs if bucket in each], self.watermark, after)
            for bucket, state in enumerate(states)
        ]

    def crash(self, tasks: Iterable[Sequence[dict[str, Any]]], after: int | None) -> None:
        """A batch that is never committed. It leaves no trace."""
        self.attempt(deepcopy(self.states), tasks, after)


def split(rows: Sequence[Any], tasks: int, rng: random.Random) -> list[list[Any]]:
    """At random, and in random order."""
    parts: list[list[Any]] = [[] for _ in range(tasks)]
    for row in rng.sample(list(rows), len(rows)):
        parts[rng.randrange(tasks)].append(row)
    return parts


def signed_hash(value: int | None) -> int | None:
    """64 bits, evenly distributed."""
    if value is None:
        return None
    return int(np.array([(value * 0x9E3779B97F4A7C15) % 2**64], np.uint64).view(np.int64)[0])
