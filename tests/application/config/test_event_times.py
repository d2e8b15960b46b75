"""`event_time` of a connector: what is deployed, what is refused, and which windows run on arrival time."""

from pathlib import Path

import pytest

from penstock.application.config import load
from penstock.application.config.document import ConfigErrors
from penstock.application.config.loading import Loaded
from penstock.application.config.types import KnownTypes
from penstock.protocol.api.deployment import Deployment
from penstock.protocol.event_time.field import EventTimeField

APPLICATION = """
connector:
  - id: input
    type: {type}
    config: {config}
    codec: {codec}
    {more}
  - id: output
    type: "null"
pipeline:
  - {{id: work, spark: work.py:work}}
binding:
  id: main
  links:
    connector/input/{port}: pipeline/work/in
    pipeline/work/out: connector/output/in
"""
FILE = "{mode: read, path: lines}"
WINDOWS = """
from penstock import windows

def work(frame):
    return counted(frame)

def counted(frame):
    return windows.aggregate(frame, windows.tumbling("1 minute"), n=windows.count())
"""


def loaded(folder: Path, more: str = "", *, code: str = WINDOWS, **keys: str) -> Loaded:
    (folder / "work.py").write_text(code)
    file = folder / "app.yaml"
    given = {"type": "file", "config": FILE, "codec": "json", "port": "out"} | keys
    file.write_text(APPLICATION.format(more=more.replace("\n", "\n    "), **given))
    return load(file, KnownTypes(), {})


def field_of(found: Loaded) -> EventTimeField | None:
    return found.deployment.connectors["input"].event_time


def mistakes(folder: Path, more: str, **keys: str) -> str:
    with pytest.raises(ConfigErrors) as raised:
        loaded(folder, more, **keys)
    return str(raised.value)


def test_a_field_is_deployed_with_the_codecs_of_its_connector(tmp_path: Path) -> None:
    more = "codec_map: {application/msgpack: msgpack}\nevent_time: {field: a.b, format: ms, missing: arrival}"
    expected = EventTimeField(
        field="a.b", format="ms", missing="arrival", codec="json", codec_map={"application/msgpack": "msgpack"}
    )
    found = loaded(tmp_path, more)
    assert field_of(found) == expected
    assert Deployment.from_json(found.deployment.as_json()) == found.deployment


def test_without_a_field_a_deployment_is_what_older_versions_know(tmp_path: Path) -> None:
    assert "event_time" not in loaded(tmp_path).deployment.as_json()["connectors"]["input"]


@pytest.mark.parametrize("field", ["Time", "1"])
def test_a_column_of_csv_has_a_name_in_the_schema_or_a_number(tmp_path: Path, field: str) -> None:
    more = f"schema: client STRING, `time` STRING\nevent_time: {{field: {field}}}"
    found = field_of(loaded(tmp_path, more, codec="csv"))
    assert found is not None
    assert (found.column, found.missing, found.format) == (1, "dead-letter", "iso")


def test_the_codec_of_the_field_can_differ_from_that_of_the_connector(tmp_path: Path) -> None:
    found = field_of(loaded(tmp_path, "event_time: {field: ts, codec: json}", codec="string"))
    assert found == EventTimeField(field="ts", codec="json")


@pytest.mark.parametrize(
    ("more", "keys", "expected"),
    [
        ("event_time: {field: ''}", {}, "expected the name of a field"),
        ("event_time: {field: a..b}", {}, "expected the name of a field"),
        ("event_time: {field: ts, format: minutes}", {}, "expected iso, s, ms, us, ns, or a strptime format"),
        ("event_time: {field: ts, format: '%d.%m.'}", {}, "has no year"),
        ("event_time: {field: ts, missing: drop}", {}, 'event_time.missing: expected "arrival" or "dead-letter"'),
        ("event_time: {format: iso}", {}, "event_time.format needs a field"),
        ("event_time: {field: ts, unit: s}", {}, "event_time.unit is for times that programs send"),
        ("event_time: {field: ts}", {"codec": "string"}, 'the codec "string" has no fields'),
        ("event_time: {field: ts, codec: jsn}", {}, "json"),
        ("schema: a INT\nevent_time: {field: ts}", {"codec": "csv"}, 'there is no column "ts" in the schema'),
        ("event_time: {feld: ts}", {}, 'unknown key "feld"'),
    ],
)
def test_a_mistake_is_reported(tmp_path: Path, more: str, keys: dict[str, str], expected: str) -> None:
    assert expected in mistakes(tmp_path, more, **keys)


def test_windows_on_arrival_time_are_pointed_out(tmp_path: Path) -> None:
    (note,) = loaded(tmp_path).notes
    assert note.startswith("windows of work run on the arrival time of input: ")
    assert "event_time: {field: ts}" in note


@pytest.mark.parametrize(
    ("more", "keys"),
    [
        ("event_time: {field: ts}", {}),
        ("event_time: {ingest: true}", {}),
        ("", {"type": "connector-protocol", "config": "{}"}),
        ("", {"type": "metronome", "config": "{interval: 1s}"}),
        ("", {"port": "err"}),
        ("", {"code": "def work(frame):\n    return frame\n\ndef other(frame):\n    return frame.windows\n"}),
    ],
    ids=["a field", "arrival is meant", "programs send times", "own times", "dead letters", "no windows"],
)
def test_nothing_is_pointed_out_where_windows_have_event_times_or_there_are_none(
    tmp_path: Path, more: str, keys: dict[str, str]
) -> None:
    assert loaded(tmp_path, more, **keys).notes == ()


@pytest.mark.parametrize(
    "code",
    [
        "from penstock.windows import aggregate as total\ndef work(frame):\n    return total(frame)\n",
        "import penstock\ndef work(frame):\n    return penstock.watermarked(frame)\n",
        "from pyspark.sql import functions as F\ndef work(frame):\n    return frame.groupBy(F.window('t', '1 s'))\n",
    ],
)
def test_windows_are_recognized_however_they_are_imported(tmp_path: Path, code: str) -> None:
    assert "arrival time" in loaded(tmp_path, code=code).notes[0]
