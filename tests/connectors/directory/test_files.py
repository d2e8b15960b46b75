"""Which files of a directory may be read, in which order, and what is known of them: without files."""

from typing import Any

import pytest
from pydantic import ValidationError

from penstock.connectors.api import StreamState
from penstock.connectors.directory.files import Completeness, Found, Listing, Record, Verdict, is_wanted, ordered
from penstock.connectors.directory.options import DirectoryOptions
from penstock.ingest.known_streams import STREAM_NAME_MAX


def options(**given: Any) -> DirectoryOptions:
    return DirectoryOptions.model_validate({"path": "/somewhere", **given})


def found(key: str, version: str = "1", modified_us: int = 0) -> Found:
    return Found(key, 10, modified_us, version)


A, B = found("a"), found("b")


def test_a_file_is_complete_when_it_has_not_changed_for_a_while() -> None:
    tested = Completeness(options(stable_for="2s"))
    assert tested.complete(Listing([A]), 0) == []
    assert tested.complete(Listing([A, B]), 1.5) == []
    assert tested.complete(Listing([A, found("b", "2")]), 2.0) == [A]
    assert tested.complete(Listing([A, found("b", "2")]), 3.9) == [A]
    assert tested.complete(Listing([A, found("b", "2")]), 4.0) == [A, found("b", "2")]
    assert tested.complete(Listing([found("b", "2")]), 5.0) == [found("b", "2")]
    assert tested.complete(Listing([A]), 6.0) == [], "it was gone: it may be another one"


def test_with_markers_only_files_that_have_one_are_complete() -> None:
    tested = Completeness(options(finished="marker"))
    assert tested.complete(Listing([A, B], frozenset({"b"})), 0) == [B]


@pytest.mark.parametrize("given", [{"finished": "renamed"}, {"path": "s3://bucket/prefix"}])
def test_renamed_files_and_objects_are_complete_at_once(given: dict[str, Any]) -> None:
    assert Completeness(options(**given)).complete(Listing([A, B]), 0) == [A, B]


def test_files_are_ordered_by_name_or_by_time() -> None:
    files = [found("b", modified_us=1), found("a/z", modified_us=3), found("a", modified_us=1)]
    assert [file.key for file in ordered(files, "name")] == ["a", "a/z", "b"]
    assert [file.key for file in ordered(files, "time")] == ["a", "b", "a/z"]


@pytest.mark.parametrize(
    ("key", "is_read"),
    [
        ("a.csv", True),
        ("deep/a.csv", True),
        ("a.txt", False),
        (".a.csv", False),
        (".git/a.csv", False),
        ("a.csv.done", False),
    ],
)
def test_files_are_chosen_by_pattern_and_ignored_names(key: str, is_read: bool) -> None:
    assert is_wanted(key, options(pattern="*.csv", finished="marker")) is is_read
    assert is_wanted("a.csv.done", options(finished="marker")) is False


def test_the_names_of_streams_are_the_record_of_what_was_read() -> None:
    record = Record([A.stream, "a stream of another kind"])
    assert len(record) == 1
    assert record.verdict(A, StreamState.STARTED) is Verdict.READ
    assert record.verdict(A, StreamState.ENDED) is Verdict.DONE
    assert record.verdict(A, StreamState.COMPLETE) is Verdict.DONE
    assert record.verdict(B, StreamState.UNKNOWN) is Verdict.READ
    changed = found("a", "2")
    assert record.verdict(changed, StreamState.UNKNOWN) is Verdict.CHANGED
    record.add(changed.stream)
    assert record.verdict(changed, StreamState.STARTED) is Verdict.READ
    assert record.others(changed) == [A.stream]


def test_long_keys_have_names_that_fit_and_differ() -> None:
    one, two = found("x" * 5000 + "a" + "y" * 200), found("x" * 5000 + "b" + "y" * 200)
    assert len(one.stream) < STREAM_NAME_MAX
    assert one.stream != two.stream
    assert Record([one.stream]).verdict(found(one.key, "2"), StreamState.UNKNOWN) is Verdict.CHANGED


def test_a_file_is_forgotten_when_it_has_been_gone_for_long() -> None:
    record = Record([A.stream, B.stream])
    assert record.gone(Listing([A]), 0, 10) == []
    assert record.gone(Listing([A, B]), 9, 10) == [], "it is back"
    assert record.gone(Listing([A]), 20, 10) == []
    assert record.gone(Listing([A]), 30, 10) == [B.stream]
    record.forget(B.stream)
    assert len(record) == 1
    assert record.gone(Listing([A]), 40, 10) == []


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"done": "move"}, "belong together"),
        ({"move_to": "/elsewhere"}, "belong together"),
        ({"done": "move", "move_to": "/somewhere/done", "recursive": True}, "inside path"),
        ({"path": "s3://bucket/a", "done": "move", "move_to": "/elsewhere"}, "objects cannot be moved"),
    ],
)
def test_options_that_do_not_fit_are_refused(given: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValidationError, match=reason):
        options(**given)
