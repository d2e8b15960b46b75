# mypy: ignore-errors
"""Flink SQL counting events per key and minute, from memory to nowhere. Run by an interpreter that has PyFlink:

    python count_flink_sql.py EVENTS KEYS EVENTS_PER_MS

It imports nothing but PyFlink, and prints one JSON object. No Python runs for an event. The time that a job of few
events takes, starting and ending it, is measured first and left out.
"""

import json
import os
import sys
import time

from pyflink.table import EnvironmentSettings, TableEnvironment

BEGAN_MS = 1_699_999_980_000
"""The first event time, and the beginning of a minute."""

FEW_EVENTS = 1_000
TRIALS = 3
"""Of the job with few events: the first ones warm the JVM up, the last one counts."""

SOURCE = """
CREATE TEMPORARY TABLE {table} (
  n BIGINT,
  k AS MOD(MOD(n * 48271, 65521), {keys}),
  t AS TO_TIMESTAMP_LTZ({began_ms} + n / {per_ms}, 3),
  WATERMARK FOR t AS t - INTERVAL '1' MINUTE
) WITH (
  'connector' = 'datagen', 'rows-per-second' = '1000000000', 'number-of-rows' = '{count}',
  'fields.n.kind' = 'sequence', 'fields.n.start' = '0', 'fields.n.end' = '{last}'
)
"""

COUNT = """
SELECT COUNT(*), SUM(c), SUM(c * c) FROM (
  SELECT k, window_start, COUNT(*) AS c
  FROM TABLE(TUMBLE(TABLE {table}, DESCRIPTOR(t), INTERVAL '1' MINUTE))
  GROUP BY k, window_start, window_end
)
"""
"""The outer query takes one row for each result, and only checks them."""

SETTINGS = {
    "parallelism.default": str(os.cpu_count() or 1),
    "table.exec.mini-batch.enabled": "true",
    "table.exec.mini-batch.allow-latency": "1 s",
    "table.exec.mini-batch.size": "10000",
    "pipeline.object-reuse": "true",
    "table.local-time-zone": "UTC",
}
"""What makes it faster."""


def run(tables: TableEnvironment, count: int, keys: int, per_ms: int) -> tuple[float, list[int]]:
    """The seconds it took, and the figures of the results."""
    table = f"events_{time.monotonic_ns()}"
    source = SOURCE.format(table=table, count=count, last=count - 1, keys=keys, per_ms=per_ms, began_ms=BEGAN_MS)
    tables.execute_sql(source)
    began = time.perf_counter()
    with tables.execute_sql(COUNT.format(table=table)).collect() as rows:
        found = [list(row) for row in rows]
    return time.perf_counter() - began, found[-1]


def main(count: int, keys: int, per_ms: int) -> None:
    tables = TableEnvironment.create(EnvironmentSettings.in_streaming_mode())
    for key, value in SETTINGS.items():
        tables.get_config().set(key, value)
    idle = [run(tables, FEW_EVENTS, keys, per_ms)[0] for _ in range(TRIALS)][-1]
    seconds, (results, counted, squares) = run(tables, count, keys, per_ms)
    told = {"events": count, "seconds": seconds - idle}
    sys.stdout.write(json.dumps(told | {"results": results, "counted": counted, "squares": squares}) + "\n")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
