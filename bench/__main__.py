"""`python -m bench [NAME …] [--quick] [--json]`: the benchmarks, or all of them. `script/bench` runs it."""

import argparse
import importlib
import sys
from pathlib import Path

from rich.console import Console

from bench.harness import Report
from penstock.core.errors import PenstockError

BENCHMARKS = {
    "append": "how fast events become durable, beside the bare loop, Redis Streams and NATS JetStream",
    "ingest": "how fast sources' messages become durable, 10 streams and 100,000, beside appends, Redis and NATS",
    "spark": "our source and sink on Spark, beside Parquet files and the smallest Python source and sink there are",
    "pipeline": "from a program to results committed at a sink, beside Bytewax and PyFlink",
    "windows": "counts per key and window, 10,000 keys and 1,000,000, beside Spark's own windowed count",
    "recovery": "from the kill of a driver to the next committed epoch, phase by phase, beside a bare Spark session",
    "bucket": "a journal in an object store, beside bare PUTs and beside the disk; the time of a take-over",
    "cluster": "ingest into two shards beside one; what up to 1,000 workers ask of a bucket, and how fast shards move",
    "remote": "a Spark query that reads a source of another shard, beside one of its own shard",
    "connectors": "codecs, interceptors and connectors in MB/s on one core, beside the plain libraries",
    "latency": "from a message sent to its commit at a sink, beside the smallest batch and its fsyncs",
}

WIDTH = 200
"""Of a table that goes to a file or a pipe: no column is cut short."""


def parser() -> argparse.ArgumentParser:
    listing = "\n".join(f"  {name:10}{meaning}" for name, meaning in BENCHMARKS.items())
    made = argparse.ArgumentParser(
        "script/bench",
        description=f"Benchmarks: ratios within one run. Without a name, all of them:\n\n{listing}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.add_argument("names", nargs="*", metavar="NAME", help=", ".join(BENCHMARKS))
    made.add_argument("--quick", action="store_true", help="fewer rounds and events")
    made.add_argument("--json", action="store_true", help="print one JSON object for each benchmark")
    made.add_argument("--markdown", action="store_true", help="print tables for a page of the documentation")
    made.add_argument("--directory", type=Path, metavar="DIR", help="where to write; its disk is measured")
    made.add_argument("--simulate", action="store_true", help="cluster: only what is simulated")
    made.add_argument("--beside-disk", action="store_true", help="bucket: only ingest and the pipeline, beside a disk")
    made.add_argument(
        "--shards", type=int, default=0, metavar="N", help="bucket: only take-overs, of a worker that has N shards"
    )
    made.add_argument("--only", action="append", metavar="FAMILY", help="connectors: codecs, web, databases, …")
    made.add_argument("--bytewax-python", type=Path, metavar="PATH", help="pipeline: a Python that has Bytewax")
    made.add_argument("--flink-python", type=Path, metavar="PATH", help="pipeline: a Python that has PyFlink")
    made.add_argument("--before-python", type=Path, metavar="PATH", help="recovery: a Python that has another Penstock")
    return made


def run(name: str, options: argparse.Namespace) -> Report:
    """A benchmark is imported when it runs: `append` does not wait for Spark."""
    benchmark = importlib.import_module(f"bench.{name}")
    effort = benchmark.QUICK if options.quick else benchmark.FULL
    pythons = {}
    match name:
        case "bucket":
            pythons = {"beside_disk": options.beside_disk, "shards": options.shards}
        case "connectors" if options.only:
            if unknown := {*options.only} - {*benchmark.FAMILIES}:
                raise SystemExit(f"unknown: {', '.join(unknown)}; --only takes {', '.join(benchmark.FAMILIES)}")
            pythons = {"families": options.only}
        case "cluster":
            pythons = {"simulate": options.simulate}
        case "pipeline":
            pythons = {"bytewax_python": options.bytewax_python, "flink_python": options.flink_python}
        case "recovery":
            pythons = {"before_python": options.before_python}
    report: Report = benchmark.run(effort, options.directory, Console(stderr=True), **pythons)
    return report


def main(arguments: list[str]) -> None:
    options = parser().parse_args(arguments)
    if unknown := [name for name in options.names if name not in BENCHMARKS]:
        parser().error(f"there is no benchmark {unknown[0]!r}: choose from {', '.join(BENCHMARKS)}")
    console = Console()
    if not console.is_terminal:
        console.width = WIDTH
    for name in options.names or BENCHMARKS:
        report = run(name, options)
        if options.json:
            sys.stdout.write(report.to_json() + "\n")
            sys.stdout.flush()
        elif options.markdown:
            sys.stdout.write(report.to_markdown() + "\n")
            sys.stdout.flush()
        else:
            report.print(console)


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except KeyboardInterrupt:
        sys.exit(130)
    except PenstockError as error:
        sys.exit(f"{error}\n{error.hint}")
