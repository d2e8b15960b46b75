"""The options of a load, and the errors for invalid ones."""

from pathlib import Path

import pytest

from penstock.client.coordinator import AtSegments, AtTime, Limits
from penstock.core.errors import RequestError, Unavailable
from penstock.spark.sink.writer import SinkOptions
from penstock.spark.source.options import SourceOptions
from penstock.spark.source.schema import COLUMNS


def parse(**options: str) -> SourceOptions:
    return SourceOptions.parse({"source": "sensors"} | options)


def refusal(**options: str) -> RequestError:
    with pytest.raises(RequestError) as caught:
        parse(**options)
    return caught.value


def test_only_the_source_is_required(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PENSTOCK_WORKER", raising=False)
    options = parse()
    assert options == SourceOptions(sources=("sensors",))
    assert (options.worker, options.starting, options.ending) == ("127.0.0.1:7102", "earliest", "latest")
    assert (options.fail_on_data_loss, options.limits, options.pipeline) == (True, None, None)
    assert options.columns == tuple(COLUMNS)


def test_the_worker_may_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_WORKER", "elsewhere:9")
    assert parse().worker == "elsewhere:9"
    assert parse(worker="here:8").worker == "here:8"


def test_the_worker_of_this_directory_is_the_default_whatever_its_ports_are(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PENSTOCK_WORKER", raising=False)
    ports = tmp_path / "penstock-data" / "ports.json"
    ports.parent.mkdir()
    ports.write_text('{"format": 1, "connector": 1, "segment": 2, "http": 40003, "id": "x", "host": "127.0.0.1"}')
    assert parse().worker == "127.0.0.1:40003"
    assert SinkOptions.parse({"pipeline": "counts"}).worker == "127.0.0.1:40003"
    ports.write_text(
        '{"format": 1, "connector": 1, "segment": 2, "http": 40003, "id": "x", "host": "::1", "certificate": "w.pem"}'
    )
    assert parse().worker == "https://[::1]:40003"
    for damaged in ("", "[]", '{"format": 1}'):
        ports.write_text(damaged)
        with pytest.raises(Unavailable, match=r"ports.json was not written by a worker"):
            parse()
    ports.unlink()
    assert parse().worker == "127.0.0.1:7102"
    monkeypatch.setenv("PENSTOCK_WORKER", "elsewhere:9")
    assert parse().worker == "elsewhere:9"


def test_option_names_are_case_insensitive() -> None:
    options = parse(MAXROWSPEREPOCH="10", failondataloss="FALSE")
    assert (options.limits, options.fail_on_data_loss) == (Limits(rows=10), False)


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("earliest", "earliest"),
        (" Latest ", "latest"),
        ("1700000000000", AtTime(1_700_000_000_000_000)),
        ("2023-11-14T22:13:20Z", AtTime(1_700_000_000_000_000)),
        ("2023-11-14T23:13:20.000001+01:00", AtTime(1_700_000_000_000_001)),
        ("2023-11-14 22:13:20", AtTime(1_700_000_000_000_000)),
        ('{"connector/a/1": 5, "connector/a/0": 0}', AtSegments({"connector/a/0": 0, "connector/a/1": 5})),
        ('{"segments": {"connector/a/0": 7}}', AtSegments({"connector/a/0": 7})),
        (
            '{"epoch": 3, "incarnation": 1, "segments": {"connector/a/0": 7}, "watermark": null}',
            AtSegments({"connector/a/0": 7}),
        ),
    ],
)
def test_a_position_is_a_keyword_an_instant_or_offsets(text: str, place: object) -> None:
    assert parse(startingOffsets=text).starting == place
    if place != "earliest":
        assert parse(endingOffsets=text).ending == place


def test_limits_and_numbers_are_read() -> None:
    options = parse(maxBytesPerEpoch="256MiB", maxRowsPerEpoch="1_000", minPartitions="4", source="b, a,segment:x")
    assert options.limits == Limits(bytes=256 << 20, rows=1000)
    assert (options.min_partitions, options.sources) == (4, ("b", "a", "segment:x"))
    named = parse(pipeline="counts", input="left", generation="7", columns="value, key", tlsCa="ca.pem")
    assert (named.pipeline, named.input, named.generation) == ("counts", "left", 7)
    assert (named.columns, named.tls) == (("value", "key"), ("ca.pem", None, None))


def test_a_load_may_have_only_control_rows() -> None:
    control = parse(rows="control", buckets="4, 0", pipeline="p")
    assert (control.buckets, control.columns) == ((4, 0), ("bucket", "epoch", "before", "watermark"))
    assert parse(rows="control", pipeline="p").buckets == (0,)
    assert parse(rows="events").buckets is None


@pytest.mark.parametrize(
    ("options", "message", "hint"),
    [
        ({"maxBytesPerEpch": "1"}, "unknown option 'maxbytesperepch'", 'Did you mean "maxBytesPerEpoch"?'),
        ({"zzz": "1"}, "unknown option 'zzz'", "Available: advertisedWorker, buckets, carriesToken, "),
        ({"source": "a/b"}, "option source: 'a/b' is not a valid source", "pipeline:NAME/PORT"),
        ({"startingOffsets": "soon"}, "option startingOffsets: 'soon' is not a valid position", "earliest, latest"),
        ({"startingOffsets": '{"a": -1}'}, "option startingOffsets", "offset"),
        ({"startingOffsets": "{a}"}, "is not JSON", "earliest, latest"),
        ({"endingOffsets": "earliest"}, "option endingOffsets: nothing comes before", "latest"),
        ({"maxBytesPerEpoch": "much"}, "option maxBytesPerEpoch: 'much' is not a size", "64MiB"),
        ({"maxBytesPerEpoch": "0"}, "option maxBytesPerEpoch: it must be at least 1 byte", "Omit it"),
        ({"maxRowsPerEpoch": "-1"}, "option maxRowsPerEpoch: '-1' is not a number", "digits"),
        ({"minPartitions": "0"}, "option minPartitions: it must be at least 1", "Omit it"),
        ({"failOnDataLoss": "maybe"}, "option failOnDataLoss: 'maybe' is neither true nor false", "true or false"),
        ({"pipeline": "a b"}, "option pipeline: 'a b' is not a valid", "letters"),
        ({"generation": "7"}, "the option generation needs the option pipeline", "pipeline"),
        ({"worker": "host:port"}, "option worker: 'host:port' is not an address", "host:port"),
        ({"columns": "value,valeu"}, "option columns: column 'valeu' not found", "message_id"),
        ({"rows": "some"}, "option rows: 'some' is neither events nor control", "Omit it"),
        ({"rows": "control"}, "rows=control is for a pipeline", "Leave it to Penstock"),
        ({"rows": "control", "pipeline": "p", "columns": "value"}, "has its own columns", "Leave it to Penstock"),
        ({"rows": "control", "pipeline": "p", "buckets": "1,x"}, "option buckets: 'x' is not a number", "digits"),
        ({"buckets": "1"}, "the option buckets needs rows=control", "events have no buckets"),
        ({"columns": "value,value"}, "option columns: the column 'value' is named twice", "once"),
    ],
)
def test_an_invalid_option_is_reported_with_its_name_and_a_hint(
    options: dict[str, str], message: str, hint: str
) -> None:
    error = refusal(**options)
    assert message in str(error)
    assert hint in error.hint


def test_a_load_without_a_source_is_refused() -> None:
    with pytest.raises(RequestError, match="the option source is missing"):
        SourceOptions.parse({})


def test_options_of_streams_and_of_batches_are_distinguished() -> None:
    with pytest.raises(RequestError, match=r"the option endingOffsets is for spark\.read"):
        SourceOptions.for_stream({"source": "a", "endingoffsets": "latest"})
    with pytest.raises(RequestError, match=r"the option pipeline is for spark\.readStream"):
        SourceOptions.for_batch({"source": "a", "pipeline": "p"})
    assert SourceOptions.for_stream({"source": "a"}) == SourceOptions.for_batch({"source": "a"})


@pytest.mark.parametrize("pattern", ["text/csv; charset=utf-8", "csv", "*/csv", "", " text/csv"])
def test_a_content_type_that_would_match_no_event_is_refused(pattern: str) -> None:
    assert "not a valid content type" in str(refusal(codec="json", codecMap=f'{{"{pattern}": "csv"}}'))


def test_content_types_may_be_patterns_and_the_more_specific_one_counts() -> None:
    given = '{"*": "string", "text/*": "binary", "text/CSV": "json"}'
    found = [(one.content_type, one.codec) for one in parse(codecMap=given).branches]
    assert found == [("text/csv", "json"), ("text/*", "binary"), ("*", "string"), ("", None)]
