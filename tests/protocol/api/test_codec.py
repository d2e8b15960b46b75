"""Bodies of the HTTP API: typed on both sides, strict in requests, lenient in replies, refused with the reason."""

from typing import Any

import pytest

from penstock.core.errors import ProtocolError, RequestError
from penstock.protocol.api.codec import Done, Empty, decode_reply, decode_request, encode
from penstock.protocol.api.dead_letters import DeadLetterPort, Replay
from penstock.protocol.api.deployment import ConnectorSpec, Deployment
from penstock.protocol.api.pipelines import (
    AtSegments,
    AtTime,
    Drop,
    InputOffset,
    Merge,
    Place,
    Range,
    Resolve,
    Splits,
    Staged,
    Starting,
    place_of,
    starting_of,
)


def test_what_one_side_encodes_the_other_decodes() -> None:
    merge = Merge(generation=3, batch=2**63 - 1, staged=[Staged("out", "staging/x", 9)])
    assert decode_request(encode(merge), Merge) == merge
    splits = Splits([Range("a", 0, 5)], [Range("a", 5, 6)])
    assert encode(splits) == b'{"splits":[["a",0,5]],"lost":[["a",5,6]],"workers":{}}'
    assert decode_reply(encode(splits), Splits) == splits


@pytest.mark.parametrize(
    ("starting", "json"),
    [
        ("earliest", b'"earliest"'),
        ("latest", b'"latest"'),
        (AtTime(-5), b'{"timestamp_us":-5}'),
        (AtSegments({"a": 1, "b": 2}), b'{"segments":{"a":1,"b":2}}'),
    ],
)
def test_a_start_position_is_a_word_a_time_or_offsets(starting: Starting, json: bytes) -> None:
    asked = Resolve(sources=["s"], position=place_of(starting))
    assert encode(asked) == b'{"sources":["s"],"position":' + json + b"}"
    assert starting_of(decode_request(encode(asked), Resolve).position) == starting


@pytest.mark.parametrize(
    ("body", "kind", "why"),
    [
        (b"", Drop, "the body is not JSON: Input data was truncated"),
        (b"[]", Drop, "the body is not valid: expected `object`, got `array`"),
        (b'{"outputz": true}', Drop, "the body is not valid: object contains unknown field `outputz`"),
        (b'{"outputs": 1}', Drop, "the body is not valid: outputs: expected `bool`, got `int`"),
        (b'{"why": 1}', Empty, "the body is not valid: object contains unknown field `why`"),
        (b'{"batch": 1, "staged": [{"port": "out"}]}', Merge, "staged[0]: object missing required field `segment`"),
        (b'{"port": "\xff"}', Replay, "the body is not JSON: 'utf-8' codec can't decode byte 0xff"),
        (b"{}", Place, "expected `timestamp_us` or `segments`"),
        (b'{"timestamp_us": 1, "segments": {}}', Place, "expected `timestamp_us` or `segments`"),
        (b'{"segments": {}, "epoch": 1}', InputOffset, "expected both `epoch` and `incarnation`, or neither"),
        (b'["a", 2, 1]', Range, "the range ends before it starts"),
    ],
)
def test_a_request_that_does_not_fit_is_refused_with_the_place_and_the_reason(
    body: bytes, kind: type[Any], why: str
) -> None:
    with pytest.raises(RequestError) as caught:
        decode_request(body, kind)
    assert why in str(caught.value)


def test_what_a_newer_worker_adds_to_a_reply_is_ignored() -> None:
    assert decode_reply(b'{"more": 1}', Done) == Done()
    port = b'{"port": "err", "start": 0, "replayed": 1, "end": 2, "waiting": 1, "more": 3}'
    assert decode_reply(port, DeadLetterPort) == DeadLetterPort("err", 0, 1, 2, 1)


@pytest.mark.parametrize("body", [b"", b"{}", b'{"port": 1}'])
def test_a_reply_that_does_not_match_is_not_a_reply_of_this_version(body: bytes) -> None:
    with pytest.raises(ProtocolError, match="the worker's answer is not valid") as caught:
        decode_reply(body, DeadLetterPort)
    assert "this version" in caught.value.hint


def test_a_deployment_with_a_field_of_another_version_is_refused() -> None:
    spec = ConnectorSpec(name="a", id="a", instance="01", type="null", config={"free": {"form": [1]}})
    data = Deployment(connectors={"a": spec}).as_json()
    assert Deployment.from_json(data).connectors == {"a": spec}
    data["connectors"]["a"]["reconnect"]["fast"] = True
    with pytest.raises(RequestError, match=r"connectors\.a\.reconnect\.fast is not known"):
        Deployment.from_json(data)
    with pytest.raises(RequestError, match="missing"):
        Deployment.from_json({})
