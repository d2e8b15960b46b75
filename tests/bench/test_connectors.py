"""`script/bench connectors`: every codec and interceptor does its work beside the plain library."""

import json

import pytest

from bench.brokers import FLOWS
from bench.connectors import FAMILIES, WORST, Effort, run
from penstock.testing.brokers import Mosquitto, NatsServer
from tests.connectors.brokers.servers import need

SHORT = Effort(rounds=1, events=50, total_s_max=30)
SMALLEST = Effort(rounds=1, events=2, total_s_max=30, round_s_min=0)


def test_cases_have_ratios_and_the_worst_one_a_goal() -> None:
    found = json.loads(run(SHORT, families=["codecs", "interceptors"]).to_json())
    assert {"decode json", "encode json", "decode avro", "in decompress zstd", "in split"} <= {*found["mb_per_s"]}
    assert found["ratios"][WORST] == min(found["ratios"].values())
    assert all(rate > 0 for rate in found["mb_per_s"].values())


@pytest.mark.process
def test_files_and_sockets_pass_events_in_both_directions() -> None:
    found = json.loads(run(SMALLEST, families=["files-and-sockets"]).to_json())
    connectors = ("tcp-server", "tcp-client", "unix-server", "unix-client", "exec")
    both = {f"{direction} {name}" for name in connectors for direction in ("in", "out")}
    assert both | {"in udp-server", "in udp-client", "in syslog", "out udp-client"} <= {*found["events_per_s"]}
    assert all(rate > 0 for rate in found["events_per_s"].values())


@pytest.mark.long
@pytest.mark.process
def test_connectors_pass_events_beside_the_plain_library() -> None:
    need(NatsServer)
    need(Mosquitto)
    quick = [(flow, server) for flow, server in FLOWS if server in (NatsServer, Mosquitto)]
    families = [family for family in FAMILIES if family != "files-and-sockets"]
    found = json.loads(run(SHORT, families=families, flows=quick).to_json())
    assert {"in nats", "out nats", "in mqtt", "out mqtt", "in kafka", "out kafka", "in sqlite", "out sqlite"} <= {
        *found["mb_per_s"]
    }
    assert {"in postgres changes", "out sql", "out delta", "in ws-client", "sse-server"} <= {*found["mb_per_s"]}
