"""`penstock check`: what a file's pipelines read and where they go, and all mistakes at once."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner, Result

from penstock.cli import check as check_command
from penstock.cli.pipeline_sinks import bound_to, check_sinks
from penstock.core.errors import RequestError
from penstock.spark.pipelines import Pipeline, pipeline

app = typer.Typer(pretty_exceptions_enable=False)
check_command.register(app)

GOOD = """
from penstock.spark import pipeline

@pipeline(inputs={"lines": ["a", "b"]}, outputs=["good", "late"], sinks={"good": "file:results", "late": ["stdout:"]})
def copy(lines): return lines

@pipeline
def other(sensors): return sensors
"""


def check(tmp_path: Path, text: str, *arguments: str) -> Result:
    file = tmp_path / "mine.py"
    file.write_text(text)
    return CliRunner().invoke(app, [str(file), *arguments], env={"COLUMNS": "200"})


def test_it_shows_inputs_ports_and_sinks_with_their_guarantee(tmp_path: Path) -> None:
    result = check(tmp_path, GOOD)
    assert result.exit_code == 0
    assert [line.rstrip() for line in result.output.splitlines()] == [
        "copy",
        "  input lines: a, b",
        "  ports: good, late",
        ("  watermark of a, b: the slowest stream; a silent stream blocks it unless the worker has an --idle-timeout"),
        "  good → file: file:results   exactly-once, transactional",
        "  late → stdout: stdout:   at-least-once",
        "other",
        "  input sensors: sensors",
        "  ports: those its function returns",
        (
            "  watermark of sensors: the slowest stream; a silent stream blocks it "
            "unless the worker has an --idle-timeout"
        ),
        "  sinks: none here; add one with penstock sink add",
    ]


def test_every_mistake_is_reported_and_it_ends_with_1(tmp_path: Path) -> None:
    text = GOOD.replace('"file:results"', '"fil:results"').replace(
        '["stdout:"]', '{"a": "stdout:?formt=x"}, "lat": "stdout:"'
    )
    result = check(tmp_path, text)
    assert result.exit_code == 1
    for part in ('"fil". Did you mean "file"?', '"formt"', 'Did you mean "format"?', "'lat'", 'Did you mean "late"?'):
        assert part in result.output
    assert "3 mistakes" in result.output
    assert "other" in result.output, "a mistake does not hide what comes after it"


def test_a_file_that_cannot_be_loaded_is_an_error_at_its_line(tmp_path: Path) -> None:
    result = check(tmp_path, GOOD + "\nraise ValueError('mine')\n")
    assert isinstance(result.exception, RequestError)
    assert "mine.py" in str(result.exception)


def test_sinks_of_the_command_line_are_checked_too(tmp_path: Path) -> None:
    result = check(tmp_path, GOOD, "--sink", "other/out=sqlite:x.db")
    assert result.exit_code == 1
    assert "table is missing" in result.output


@pipeline(sinks={"out": "file:results"})
def one(lines: object) -> object:
    return lines


@pipeline(outputs=["out", "late"])
def two(lines: object) -> object:
    return lines


def bound(pipelines: list[Pipeline], *given: str) -> dict[str, dict[str, tuple[str, str]]]:
    return {
        made.name: {name: (spec.port, spec.url) for name, spec in made.sinks.items()}
        for made in bound_to(pipelines, given)
    }


def test_the_command_line_adds_to_what_is_declared() -> None:
    assert bound([one], "stdout:", "late=file:other?format=raw", "file:results") == {
        "one": {
            "file": ("out", "file:results"),
            "stdout": ("out", "stdout:"),
            "file-2": ("late", "file:other?format=raw"),
        }
    }
    assert bound([one, two], "two/late=http://h/in?a=b")["two"] == {"http": ("late", "http://h/in?a=b")}


@pytest.mark.parametrize(
    ("given", "said"),
    [("stdout:", "is ambiguous: the file has several pipelines"), ("three/out=stdout:", "pipeline 'three' not found")],
)
def test_with_several_pipelines_one_must_be_named(given: str, said: str) -> None:
    with pytest.raises(RequestError, match=said) as caught:
        bound_to([one, two], [given])
    assert "one" in caught.value.hint


def test_run_reports_all_mistakes_before_anything_is_started() -> None:
    pipelines = bound_to([one, two], ["one/out=fil:x", "two/lat=stdout:"])
    with pytest.raises(RequestError) as caught:
        check_sinks(pipelines, worker_is_here=True)
    assert 'pipeline one, sink fil: unknown sink type "fil"' in str(caught.value)
    assert (
        "pipeline two, sink stdout: the sink 'stdout' is bound to port 'lat', which the pipeline does not have"
        in str(caught.value)
    )
    check_sinks(bound_to([one, two], []), worker_is_here=True)


def test_a_command_is_called_without_the_modules_of_the_others() -> None:
    code = (
        "import sys\n"
        "from typer.testing import CliRunner\n"
        "from penstock.cli.app import app\n"
        "assert CliRunner().invoke(app, ['access', '--help']).exit_code == 0\n"
        "print('penstock.cli.access' in sys.modules, 'penstock.cli.run' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, timeout=200, capture_output=True, text=True)
    assert done.stdout == "True False\n"


def test_the_command_line_loads_neither_kernels_nor_spark_nor_drivers_before_they_are_needed() -> None:
    code = (
        "import sys, typer.main\n"
        "from penstock.cli.app import app\n"
        "assert typer.main.get_command(app).list_commands(None)\n"  # imports all of them
        "print(sorted({'numba', 'numpy', 'pyspark', 'psycopg', 'sqlite3'} & sys.modules.keys()))"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, timeout=200, capture_output=True, text=True)
    assert done.stdout == "[]\n"


def test_without_a_file_or_a_cluster_there_is_nothing_to_check() -> None:
    assert "there is nothing to check" in str(CliRunner().invoke(app, []).exception)


def test_json_has_everything_that_is_shown(tmp_path: Path) -> None:
    result = check(tmp_path, GOOD, "--json")
    assert result.exit_code == 0
    copy, other = json.loads(result.stdout)["pipelines"]
    assert (copy["name"], copy["inputs"], copy["ports"]) == ("copy", {"lines": ["a", "b"]}, ["good", "late"])
    assert copy["watermarks"][0].startswith("watermark of a, b: the slowest stream")
    assert [(one["port"], one["to"], one["guarantee"], one["is_transactional"]) for one in copy["sinks"]] == [
        ("good", "file:results", "exactly-once", True),
        ("late", "stdout:", "at-least-once", False),
    ]
    assert (other["ports"], other["sinks"]) == (None, [])


def test_json_has_every_mistake_and_it_ends_with_1(tmp_path: Path) -> None:
    result = check(tmp_path, GOOD.replace('"file:results"', '"fil:results"'), "--json")
    assert result.exit_code == 1
    good, late = json.loads(result.stdout)["pipelines"][0]["sinks"]
    assert ([one["text"] for one in good["mistakes"]], good["guarantee"]) == (['unknown sink type "fil"'], None)
    assert late["mistakes"] == []


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("import json\n", "has no pipeline"),
        (GOOD + "\nraise ValueError('mine')\n", "ValueError: mine"),
        (GOOD.replace("@pipeline\n", '@pipeline(name="copy")\n'), "has two pipelines 'copy'"),
    ],
)
def test_json_has_the_mistake_of_a_file_without_usable_pipelines(tmp_path: Path, text: str, reason: str) -> None:
    result = check(tmp_path, text, "--json")
    assert result.exit_code == 1
    found = json.loads(result.stdout)
    assert (found["file"], found["pipelines"]) == (str(tmp_path / "mine.py"), [])
    (mistake,) = found["mistakes"]
    assert reason in mistake["text"]


def test_json_is_about_one_thing(tmp_path: Path) -> None:
    both = check(tmp_path, GOOD, "--json", "--master", "spark://127.0.0.1:1")
    assert "--json is for a file or for executors" in str(both.exception)
