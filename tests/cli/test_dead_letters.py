"""`penstock dead-letters`, against a worker in this process."""

import base64
import json
from collections.abc import Callable

import pytest
from typer.testing import CliRunner, Result

from penstock.cli.app import app
from penstock.cli.dead_letters import shown
from penstock.client.coordinator import CoordinatorClient, InputSpec
from penstock.client.segments import SegmentClient
from penstock.connectors.api import StreamRef
from penstock.core.errors import PipelineError, RequestError
from penstock.worker.routes import number_of
from tests.spark.dead_letters.putting import PIPELINE, Putting, letter, original
from tests.support.running_worker import RunningWorker

Run = Callable[..., Result]


@pytest.fixture
def putting(client: CoordinatorClient, segments: SegmentClient) -> Putting:
    return Putting(client, segments)


@pytest.fixture
def penstock(worker: RunningWorker) -> Run:
    def run(*arguments: str) -> Result:
        return CliRunner().invoke(app, ["dead-letters", *arguments, "--worker", f"127.0.0.1:{worker.ports['http']}"])

    return run


def refusal(result: Result) -> str:
    assert isinstance(result.exception, PipelineError | RequestError), result.output
    assert result.exception.hint
    return str(result.exception)


def test_dead_letters_are_listed_with_their_reasons_and_positions(putting: Putting, penstock: Run) -> None:
    putting.letters([letter(1), letter(2)])
    putting.letters([letter(3, watermark=9_000_000, behind_us=6_000_000)], "late")
    listed = penstock("list", PIPELINE).stdout
    for text in ("reason 1", "raw@2", "1970-01-01 00:00:03", "reason 3 (by 6.000 s)", "err: ", "not replayed yet"):
        assert text in listed
    assert "reason 1" not in penstock("list", PIPELINE, "--port", "late").stdout
    assert "reason 1" not in penstock("list", PIPELINE, "-n", "1").stdout
    oldest = json.loads(penstock("list", PIPELINE, "-n", "1", "--oldest", "--port", "err", "--json").stdout)
    assert [(one["port"], one["at"], one["reason"], one["offset"]) for one in oldest] == [("err", 0, "reason 1", 1)]


def test_a_dead_letter_is_shown_with_its_bytes(putting: Putting, penstock: Run) -> None:
    putting.letters([letter(1), letter(2, b"\x00\xff")])
    text = penstock("show", PIPELINE, "0").stdout
    assert text.endswith("\n\nvalue 1\n")
    assert "reason:      reason 1" in text
    second = json.loads(penstock("list", PIPELINE, "--json").stdout)[1]["at"]
    assert "00000000  00 ff" in penstock("show", PIPELINE, str(second)).stdout
    told = json.loads(penstock("show", PIPELINE, str(second), "--json").stdout)
    assert base64.b64decode(told["value"]) == b"\x00\xff"
    assert refusal(penstock("show", PIPELINE, "1")) == "no dead letter of port 'err' starts at 1"


def test_bytes_are_shown_as_text_where_they_are_text() -> None:
    assert shown("tür\n\tzwei".encode()) == ["tür\n\tzwei"]
    assert shown(b"") == [""]
    assert shown(b"a\x1b[31m") == ["00000000  61 1b 5b 33 31 6d" + 32 * " " + "a.[31m"]
    assert len(shown(bytes(33))) == 3
    assert shown("\x9b31m".encode()) == ["00000000  c2 9b 33 31 6d" + 35 * " " + "..31m"]


def test_text_written_by_others_does_not_control_the_terminal(putting: Putting, penstock: Run) -> None:
    reason = "ValueError: \x1b[31mred\nand more " + 900 * "é"
    putting.letters([letter(1, reason=reason)])
    listed, told = penstock("list", PIPELINE).stdout, penstock("show", PIPELINE, "0").stdout
    assert "\\x1b[31mred\\nand more" in listed
    assert listed.count("é") < 200, "a list is short"
    assert told.count("é") == 900
    assert "\x1b" not in listed + told


def test_a_replay_reports_how_many_and_does_each_once(
    putting: Putting, penstock: Run, segments: SegmentClient, client: CoordinatorClient
) -> None:
    putting.letters([letter(1), letter(2), letter(3, segment=None)])
    second = client.dead_letters(PIPELINE, "err", limit=3).dead_letters[1]
    assert penstock("replay", PIPELINE, "--upto", "0").stdout.startswith("replayed 1 dead letter of orders/err")
    assert (
        refusal(penstock("replay", PIPELINE, "--upto", "0")) == "dead letter 0 of orders/err has already been replayed"
    )
    told = penstock("replay", PIPELINE).stdout
    assert told.startswith("replayed 1 dead letter of orders/err")
    assert "1 left out: no input of orders reads their source" in told
    assert [event.data for event in segments.events("pipeline/orders/replay.in")] == [original(1), original(2)]
    assert refusal(penstock("replay", PIPELINE)) == "all dead letters of orders/err have already been replayed"
    assert client.dead_letter(PIPELINE, "err", second.at).replayed
    assert "yes" in penstock("list", PIPELINE).stdout


def test_single_dead_letters_are_replayed(
    putting: Putting, penstock: Run, segments: SegmentClient, client: CoordinatorClient
) -> None:
    putting.letters([letter(number) for number in range(1, 5)])
    at = [str(one.at) for one in client.dead_letters(PIPELINE, "err", limit=4).dead_letters]
    done = json.loads(penstock("replay", PIPELINE, "--at", at[3], "--at", at[1], "--json").stdout)
    assert done == {"count": 2, "left_out": 0}
    assert [event.data for event in segments.events("pipeline/orders/replay.in")] == [original(2), original(4)]
    once = refusal(penstock("replay", PIPELINE, "--at", at[1]))
    assert once == f"dead letter {at[1]} of orders/err has already been replayed"
    assert f"dead letter {at[1]}" in refusal(penstock("replay", PIPELINE, "--at", at[0], "--at", at[1]))
    assert "exclude each other" in refusal(penstock("replay", PIPELINE, "--at", at[0], "--upto", at[0]))
    assert penstock("replay", PIPELINE).stdout.startswith("replayed 2 dead letters of orders/err")
    assert "not replayed yet" not in penstock("list", PIPELINE).stdout
    assert refusal(penstock("replay", PIPELINE)) == "all dead letters of orders/err have already been replayed"


def test_something_missing_is_reported_with_what_to_do(putting: Putting, penstock: Run) -> None:
    assert putting.generation
    assert penstock("list", PIPELINE).stdout == "orders has no dead letters\n"
    assert refusal(penstock("replay", PIPELINE)) == "orders/err has no dead letters"
    assert refusal(penstock("replay", PIPELINE, "--port", "late")) == "orders/late has no dead letters"
    assert refusal(penstock("list", "nobody")) == "'nobody' is neither a pipeline nor a source"
    assert refusal(penstock("show", "nobody", "0")) == "source 'nobody' not found"
    assert refusal(penstock("replay", "nobody")) == "pipeline 'nobody' not found"
    putting.letters([letter(1)])
    assert "no input 'x'" in refusal(penstock("replay", PIPELINE, "--input", "x"))
    assert penstock("list", PIPELINE, "--port", "out").exit_code == 2


def test_invalid_numbers_are_refused_by_the_worker(putting: Putting, client: CoordinatorClient) -> None:
    assert putting.generation
    with pytest.raises(RequestError, match="the limit is '-1', not a whole number"):
        client.dead_letters(PIPELINE, limit=-1)
    with pytest.raises(RequestError, match="the place is '9223372036854775808', not a whole number from 0 to"):
        client.dead_letter(PIPELINE, "err", 2**63)
    with pytest.raises(RequestError, match="the place is '999"):
        number_of("9" * 5000, "place")
    with pytest.raises(RequestError, match="port 'nowhere' has no dead letters"):
        client.dead_letters(PIPELINE, "nowhere")


def put_source_dead_letter(worker: RunningWorker, source: str, value: bytes, reason: str) -> None:
    """As a connector does with bytes that cannot become an event."""
    written = worker.worker.sources.dead_letters(source).write(value, reason, StreamRef(source, 7), "till 1", {})
    worker.call(written)
    worker.call(worker.worker.sources.durability.caught_up())


def test_dead_letters_of_a_source_are_listed_and_shown(
    worker: RunningWorker, client: CoordinatorClient, penstock: Run
) -> None:
    for number in range(3):
        put_source_dead_letter(worker, "shop", b"bytes %d" % number, f"no event time: reason {number}")
    listed = penstock("list", "shop").stdout
    assert "source shop: never became events" in listed
    for text in ("till 1", "no event time: reason 0", "no event time: reason 2", "7 B"):
        assert text in listed
    (newest,) = json.loads(penstock("list", "shop", "-n", "1", "--json").stdout)
    assert (newest["reason"], newest["of_source"]) == ("no event time: reason 2", "shop")
    (oldest,) = json.loads(penstock("list", "shop", "-n", "1", "--oldest", "--json").stdout)
    assert oldest["reason"] == "no event time: reason 0"
    text = penstock("show", "shop", str(newest["at"])).stdout
    assert "no event time: reason 2" in text
    assert text.endswith("\n\nbytes 2\n")
    assert refusal(penstock("show", "shop", "1")) == "no dead letter of source 'shop' starts at 1"
    client.start("orders", {"in": InputSpec(["shop", "later"])}, ["out"])
    both = penstock("list", "orders").stdout
    assert "orders has no dead letters" in both
    assert "no event time: reason 1" in both, "a pipeline is listed with its sources"
    assert "reason 1" not in penstock("list", "orders", "--port", "err").stdout


def test_events_are_buried_listed_and_read_again(
    putting: Putting, penstock: Run, segments: SegmentClient, client: CoordinatorClient
) -> None:
    with segments.appender("raw") as appender:
        for _ in range(3):
            appender.append(b"event")
    assert penstock("buried", PIPELINE).stdout == "no event of orders is buried\n"
    done = penstock("bury", PIPELINE, "--at", "raw@13", "--at", "raw@26", "--reason", "not a number")
    assert done.stdout == "buried 2 events of orders\n"
    again = penstock("bury", PIPELINE, "--at", "raw@13")
    assert again.stdout == "buried 0 events of orders\n1 were buried already\n"
    listed = penstock("buried", PIPELINE).stdout
    for text in ("raw@13", "raw@26", "left out of its epoch", "buried by an operator: not a number"):
        assert text in listed
    assert penstock("bury", PIPELINE, "--at", "raw@13", "--undo").stdout == "1 event of orders will be read again\n"
    (left,) = json.loads(penstock("buried", PIPELINE, "--json").stdout)
    assert (left["segment"], left["offset"], left["is_committed"]) == ("raw", 26, False)
    cut = client.cut(PIPELINE, putting.generation, "in", putting.at, wait_ms=5000)
    assert [(one.start, one.end) for one in cut.left_out] == [(26, 39)]
    assert json.loads(penstock("bury", PIPELINE, "--at", "raw@13", "--undo", "--json").stdout)["changed"] == 0
    late = penstock("bury", PIPELINE, "--at", "raw@0")
    assert "takes effect when orders is restarted" in late.stdout
    assert "left out with the next start" in penstock("buried", PIPELINE).stdout


def test_what_cannot_be_buried_is_refused_with_the_reason(putting: Putting, penstock: Run) -> None:
    putting.letters([letter(1)])
    assert refusal(penstock("bury", PIPELINE, "--at", "raw")) == "'raw' is not the place of an event"
    assert refusal(penstock("bury", PIPELINE, "--at", "raw@-1")) == "'raw@-1' is not the place of an event"
    assert "raw@0 is committed" in refusal(penstock("bury", PIPELINE, "--at", "raw@0"))
    assert refusal(penstock("bury", "nobody", "--at", "raw@0")) == "pipeline 'nobody' not found"
    assert "is not an input of pipeline 'orders'" in refusal(penstock("bury", PIPELINE, "--at", "other@0"))
