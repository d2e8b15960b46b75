"""The messages that Spark reads: what the worker makes of them, by the protocol's own kernels."""

from pathlib import Path

import pytest

from penstock.bench.contenders.ingest import Ingest, status
from penstock.bench.events import EVENT_BYTES
from penstock.bench.messages import BEGAN_MS, KEY_BYTES, Messages
from penstock.protocol.connector.bulk import scan


def test_no_two_payloads_are_the_same_and_ids_and_times_go_up() -> None:
    columns = [scan(batch.tobytes()) for batch in Messages("s", 25, streams=3).batches(10)]
    found = [part.message(index) for part in columns for index in range(len(part))]
    assert len(found) == 25
    assert [message.message_id for message in found] == list(range(25))
    assert [message.event_time for message in found] == [BEGAN_MS + number for number in range(25)]
    assert len({message.stream_id for message in found}) == 3
    assert {(len(message.key), len(message.payload)) for message in found} == {(KEY_BYTES, EVENT_BYTES)}
    assert len({message.payload for message in found}) == 25


@pytest.mark.process
@pytest.mark.parametrize("together", [None, 10])
def test_all_messages_are_stored_when_send_returns(together: int | None, tmp_path: Path) -> None:
    with Ingest(1, 1).start(tmp_path) as server:
        Messages("s", 5005, together=together).send(server.ports["connector"])
        assert status(server)["gateway"]["messages"] == 5005
