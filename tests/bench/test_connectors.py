"""`script/bench connectors`: every codec and interceptor does its work beside the plain library."""

import json

import pytest

from bench.brokers import FLOWS
from bench.connectors import WORST, Effort, run
from penstock.testing.brokers import Mosquitto, NatsServer
from tests.connectors.brokers.servers import need


def test_every_case_has_a_ratio_and_the_worst_one_a_goal() -> None:
    report = run(Effort(rounds=1, events=50, total_s_max=30), flows=(), sockets=False)
    found = json.loads(report.to_json())
    assert {
        "decode json",
        "decode avro",
        "in decompress zstd",
        "in split",
        "in sqlite",
        "in postgres changes",
        "out sql",
        "in kafka",
        "out kafka",
        "decode protobuf",
        "encode json",
        "out delta",
    } <= {*found["mb_per_s"]}
    assert found["ratios"][WORST] == min(found["ratios"].values())
    assert all(rate > 0 for rate in found["mb_per_s"].values())


@pytest.mark.long
@pytest.mark.process
def test_connectors_pass_messages_beside_the_plain_library() -> None:
    need(NatsServer)
    need(Mosquitto)
    quick = [(flow, server) for flow, server in FLOWS if server in (NatsServer, Mosquitto)]
    found = json.loads(run(Effort(rounds=1, events=50, total_s_max=30), flows=quick, sockets=False).to_json())
    assert {"in nats", "out nats", "in mqtt", "out mqtt"} <= {*found["mb_per_s"]}
