"""Sources and the segments that are theirs."""

import pytest

from penstock.core.errors import RequestError
from penstock.protocol.stored.names import (
    LEDGER,
    Form,
    Kind,
    Owner,
    Partition,
    Source,
    check_pipeline_name,
    check_source_name,
    connector_segment,
    kind_of,
    output_segment,
    parse_sources,
    partition_of,
)


@pytest.mark.parametrize(
    ("text", "source"),
    [
        ("sensors", Source(Form.CONNECTOR, "sensors")),
        (" a b ", Source(Form.CONNECTOR, "a b")),
        ("pipeline:counts/out", Source(Form.OUTPUT, "counts/out")),
        ("segment:numbers", Source(Form.SEGMENT, "numbers")),
        ("segment:a/b", Source(Form.SEGMENT, "a/b")),
        ("segment:a/b/0.#epoch.0#transaction.c", Source(Form.SEGMENT, "a/b/0.#epoch.0#transaction.c")),
        ("pravega:plant/readings", Source(Form.PRAVEGA, "plant/readings")),
    ],
)
def test_a_source_is_read_and_written_back(text: str, source: Source) -> None:
    assert Source.parse(text) == source
    assert str(source) == text.strip()
    assert Source.parse(str(source)) == source


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("", "'' is not a valid source"),
        ("a/b", "'a/b' is not a valid source"),
        ("a\nb", "is not a valid source"),
        ("pipeline:counts", "is not a valid pipeline output"),
        ("pipeline:a/b/c", "is not a valid pipeline output"),
        ("pipeline:/out", "is not a valid pipeline output"),
        ("segment:", "names no segment"),
        ("segment:connector/sensors/0", "segment 'connector/sensors/0' contains stored events"),
        ("segment:pipeline/counts/out", "contains stored events"),
        ("segment:connector/sensors/streams", "belongs to the worker itself"),
        (f"segment:{LEDGER}", "belongs to the worker itself"),
        ("segment:staging/a", "belongs to the worker itself"),
        ("segment:a/b/0.#epoch.0", "is a part of pravega:a/b"),
        ("pravega:plant", "is not a valid stream of Pravega's clients"),
        ("pravega:a/b/c", "is not a valid stream of Pravega's clients"),
    ],
)
def test_an_invalid_source_is_refused(text: str, what: str) -> None:
    with pytest.raises(RequestError) as caught:
        Source.parse(text)
    assert what in str(caught.value)
    assert caught.value.hint


def test_the_hint_reports_how_to_read_a_segment_of_stored_events() -> None:
    with pytest.raises(RequestError) as caught:
        Source.parse("segment:pipeline/counts/out")
    assert caught.value.hint == "Read it as source 'pipeline:counts/out'."


def test_several_sources_are_separated_by_commas_and_counted_once() -> None:
    assert list(map(str, parse_sources("b, a,pipeline:p/out,b"))) == ["b", "a", "pipeline:p/out"]
    with pytest.raises(RequestError):
        parse_sources("a,,b")


@pytest.mark.parametrize(
    ("segment", "owner"),
    [
        (connector_segment("sensors", 0), Owner("sensors", Kind.STORED)),
        (connector_segment("sensors", 12), Owner("sensors", Kind.STORED)),
        (output_segment("counts", "out"), Owner("pipeline:counts/out", Kind.STORED)),
        ("numbers", Owner("segment:numbers", Kind.RAW)),
        ("connectors", Owner("segment:connectors", Kind.RAW)),
        ("plant/readings/12.#epoch.3", Owner("pravega:plant/readings", Kind.RAW)),
    ],
)
def test_a_segment_belongs_to_a_source_that_owns_it(segment: str, owner: Owner) -> None:
    assert kind_of(segment) == owner
    assert Source.parse(owner.source).owns(segment)
    assert Source.parse(owner.source).segment in (segment, None)


@pytest.mark.parametrize(
    "segment", ["connector/a/streams", "connector/a/01", "connector/a/0/1", "staging/a", "coordinator/streams/a"]
)
def test_the_workers_own_segments_belong_to_nobody(segment: str) -> None:
    with pytest.raises(RequestError, match="belongs to the worker itself"):
        kind_of(segment)
    assert not Source.parse("a").owns(segment)


def test_access_to_a_stream_of_pravegas_clients_is_by_its_own_name() -> None:
    assert Source.parse("pravega:plant/readings").access_name == "plant/readings"


def test_a_source_does_not_own_the_segments_of_others() -> None:
    assert not Source.parse("sens").owns("connector/sensors/0")
    assert not Source.parse("pipeline:a/b").owns("pipeline/a/bc")
    assert not Source.parse("pravega:a/b").owns("a/bc/0.#epoch.0")
    assert not Source.parse("pravega:a/b").owns("a/b/0.#epoch.0#transaction.c")


@pytest.mark.parametrize("name", ["", "a/b", "ä", "a" * 101, "a b"])
def test_names_of_pipelines_are_plain(name: str) -> None:
    with pytest.raises(RequestError, match="is not a valid port name"):
        check_pipeline_name(name, "port")
    assert check_pipeline_name("A.b-c_9") == "A.b-c_9"


@pytest.mark.parametrize("name", ["sensors", "a b", "ünï", "host:4711", "a.b-c_d", "x" * 200, "a#b", "apipeline:b"])
def test_the_name_of_a_source_is_one_item_of_a_list(name: str) -> None:
    assert check_source_name(name) == name
    assert parse_sources(f"first,{name}") == [Source(Form.CONNECTOR, "first"), Source(Form.CONNECTOR, name)]


@pytest.mark.parametrize(
    "name",
    [
        "",
        "a,b",
        ",",
        "a/b",
        "a=b",
        'a"b',
        "a'b",
        "a\\b",
        " a",
        "a ",
        "a\nb",
        "x" * 201,
        "pipeline:a",
        "segment:a",
        "pravega:a",
        "a#1",
    ],
)
def test_a_name_that_would_be_ambiguous_in_a_list_is_refused(name: str) -> None:
    with pytest.raises(RequestError, match=r"not a valid source name: use 1 to 200 printable characters, no comma"):
        check_source_name(name)


@pytest.mark.parametrize(
    ("source", "number", "name"),
    [("a", 0, "a"), ("a", 1, "a#1"), ("a.err", 0, "a.err"), ("a.err", 12, "a#12.err"), ("a#b", 3, "a#b#3")],
)
def test_a_partition_has_a_name_of_its_own(source: str, number: int, name: str) -> None:
    assert Partition(source, number).name == name
    assert partition_of(name) == (source, number)


@pytest.mark.parametrize("name", ["a", "a#0", "a#", "#1", "a#01", "a#1x", "a#-1"])
def test_other_names_are_not_those_of_partitions(name: str) -> None:
    assert partition_of(name) == (name, 0)


def test_a_source_owns_the_segments_of_all_its_partitions() -> None:
    for segment in ("connector/a/0", "connector/a#1/3"):
        assert Source.parse("a").owns(segment)
    assert Source.parse("a#1").owns("connector/a#1/0")
    assert not Source.parse("a#1").owns("connector/a/0")
    assert not Source.parse("a#1").owns("connector/a#11/0")
    assert not Source.parse("a").owns("connector/ab#1/0")
