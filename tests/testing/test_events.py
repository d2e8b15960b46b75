"""What a test passes as events, and how they are stored."""

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from penstock.core.errors import RequestError
from penstock.protocol.stored.event import NO_TIME
from penstock.spark.codecs.codec import Coding
from penstock.testing.events import Event, epochs_of, event_of, stored_form, time_us

JSON = Coding("orders", "json")


def stored_value(event: Any, coding: Coding | None = JSON) -> bytes:
    return stored_form(event_of(event), coding).value


def test_the_entries_of_a_dict_are_the_fields_of_its_document() -> None:
    assert stored_value({"shop": "north", "amount": 3}) == b'{"shop":"north","amount":3}'


def test_some_entries_belong_to_the_event_and_not_to_its_document() -> None:
    given = {"shop": "north", "event_time": 61.5, "key": "k", "stream": "till", "content_type": "text/x"}
    stored = stored_form(event_of({**given, "metadata": {"path": "/"}}), JSON)
    assert stored.value == b'{"shop":"north"}'
    assert (stored.time_us, stored.key, stored.stream) == (61_500_000, b"k", "till")
    assert stored.metadata == {"path": "/", "content_type": "text/x"}


def test_an_event_without_a_time_is_stored_without_one() -> None:
    assert stored_form(event_of(b"x"), None).time_us == NO_TIME


@pytest.mark.parametrize("given", [b"raw", "raw", {"value": b"raw"}, {"value": "raw"}, Event(value="raw")])
def test_bytes_and_text_are_stored_as_they_are(given: Any) -> None:
    assert stored_value(given) == b"raw"


def test_a_document_may_have_any_field_as_data() -> None:
    assert stored_value(Event(data={"value": 1, "key": 2})) == b'{"value":1,"key":2}'


def test_a_value_with_further_fields_is_refused() -> None:
    with pytest.raises(RequestError, match="has other fields: shop") as refused:
        event_of({"value": b"x", "shop": "north"})
    assert "Event(data=" in refused.value.hint


@pytest.mark.parametrize("given", [7, None, ["x"]])
def test_anything_else_is_not_an_event(given: Any) -> None:
    with pytest.raises(RequestError, match="is not an event"):
        event_of(given)


def test_an_event_has_data_or_a_value() -> None:
    with pytest.raises(RequestError, match="either `data` or `value`"):
        Event()


@pytest.mark.parametrize(
    ("coding", "value"),
    [
        (None, b'{"b":"x","a":1}'),
        (Coding("s", "binary"), b'{"b":"x","a":1}'),
        (Coding("s", "msgpack"), b"\x82\xa1b\xa1x\xa1a\x01"),
        (Coding("s", "csv", schema="a INT, b STRING, c INT"), b"1,x,"),
        (Coding("s", None, {"text/csv": "csv"}, "b STRING, a INT"), b'{"b":"x","a":1}'),
    ],
)
def test_fields_are_written_in_the_codec_of_the_input(coding: Coding | None, value: bytes) -> None:
    assert stored_value({"b": "x", "a": 1}, coding).rstrip(b"\r\n") == value


def test_the_content_type_chooses_the_codec() -> None:
    coding = Coding("s", "json", {"text/csv": "csv"}, "b STRING, a INT")
    given = {"a": 1, "b": "x", "content_type": "text/CSV; charset=utf-8"}
    assert stored_value(given, coding).rstrip(b"\r\n") == b"x,1"


@pytest.mark.parametrize(
    "given",
    [
        "1970-01-01T00:01:00Z",
        "1970-01-01T00:01:00",
        datetime(1970, 1, 1, 0, 1),
        datetime(1970, 1, 1, 1, 1, tzinfo=timezone(timedelta(hours=1))),
        datetime(1970, 1, 1, 0, 1, tzinfo=UTC),
        60,
        60.0,
    ],
)
def test_a_time_is_utc_unless_it_names_a_zone(given: Any) -> None:
    assert time_us(given) == 60_000_000


def test_text_that_is_not_a_time_is_refused() -> None:
    with pytest.raises(RequestError, match="'noon' is not a time"):
        time_us("noon")


def test_a_list_of_events_is_one_epoch_and_a_list_of_lists_several() -> None:
    assert [{name: len(events) for name, events in one.items()} for one in epochs_of({"a": [b"1", b"2"]})] == [{"a": 2}]
    several = epochs_of({"a": [[b"1"], [], [b"2", b"3"]], "b": [b"1"]})
    assert [{name: len(events) for name, events in one.items()} for one in several] == [
        {"a": 1, "b": 1},
        {"a": 0},
        {"a": 2},
    ]


@pytest.mark.parametrize(("given", "text"), [([[b"1"], b"2"], "beside lists"), ({"shop": 1}, "not a list")])
def test_events_that_are_no_list_of_epochs_are_refused(given: Any, text: str) -> None:
    with pytest.raises(RequestError, match=text):
        epochs_of({"a": given})
