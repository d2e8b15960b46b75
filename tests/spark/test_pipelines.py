"""`@pipeline`: what a declaration means, and what it refuses."""

import subprocess
import sys
from datetime import UTC, datetime
from typing import Any

import pytest

from penstock.core.errors import RequestError
from penstock.protocol.api.pipelines import AtSegments, AtTime
from penstock.spark import pipeline


def test_a_parameter_reads_the_source_of_its_name() -> None:
    @pipeline
    def counts(north: Any, south: Any, window: str = "5 seconds") -> Any:
        return north, south, window

    assert counts.name == "counts"
    assert counts.inputs == {"north": ("north",), "south": ("south",)}
    assert (counts.outputs, counts.mode, counts.starting) == (None, "append", "earliest")
    assert counts("a", "b") == ("a", "b", "5 seconds"), "a test calls it like the function"


def test_everything_else_is_an_option_of_the_declaration() -> None:
    @pipeline(
        name="by-hour",
        inputs={"events": ["north", "segment:raw"], "old": "pipeline:counts/out"},
        columns=["value", "content_type"],
        outputs=["good", "bad"],
        mode="complete",
        trigger="2s",
        starting=datetime(2024, 1, 1, tzinfo=UTC),
        max_bytes_per_epoch="1KiB",
        max_rows_per_epoch=10,
    )
    def counts(events: Any, old: Any = None) -> None:
        pass

    assert counts.name == "by-hour"
    assert counts.inputs == {"events": ("north", "segment:raw"), "old": ("pipeline:counts/out",)}
    assert counts.columns == ("value", "content_type")
    assert counts.outputs == ("good", "bad")
    assert (counts.trigger_ms, counts.limits.bytes, counts.limits.rows) == (2000, 1024, 10)
    assert counts.starting == AtTime(1_704_067_200_000_000)


def test_a_pipeline_may_start_at_given_offsets() -> None:
    @pipeline(starting={"connector/a/0": 17})
    def counts(a: Any) -> None:
        pass

    assert counts.starting == AtSegments({"connector/a/0": 17})


def nothing() -> None:
    pass


def many(*frames: Any) -> None:
    pass


def one(a: Any) -> None:
    pass


@pytest.mark.parametrize(
    ("function", "options", "said"),
    [
        (nothing, {}, "reads nothing"),
        (many, {}, r"takes \*frames"),
        (one, {"inputs": {"b": "x"}}, "no parameter 'b'"),
        (one, {"name": "no/slash"}, "not a valid pipeline name"),
        (one, {"outputs": ["no space"]}, "not a valid port name"),
        (one, {"columns": ["valu"]}, "column 'valu' not found"),
        (one, {"columns": []}, "no columns are named"),
        (one, {"mode": "update"}, "mode 'update' is not supported"),
        (one, {"trigger": "soon"}, "not a valid duration"),
        (one, {"starting": "middle"}, "is not a valid starting position"),
        (one, {"inputs": {"a": "connector/a/0"}}, "is not a valid source"),
        (one, {"max_bytes_per_epoch": "lots"}, "not a size"),
    ],
)
def test_an_invalid_declaration_is_refused_at_once(function: Any, options: dict[str, Any], said: str) -> None:
    with pytest.raises(RequestError, match=said):
        pipeline(**options)(function)


def test_the_command_line_and_declarations_need_no_spark() -> None:
    code = (
        "import sys, penstock.cli, penstock.spark; penstock.spark.pipeline\n"
        "sys.exit('pyspark' in sys.modules or 'pyarrow' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
