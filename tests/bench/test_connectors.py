"""`script/bench connectors`: every codec and interceptor does its work beside the plain library."""

import json
from statistics import median

import pytest

from bench.brokers import FLOWS
from bench.connectors import FAMILIES, WORST, ConnectorsReport, Effort, Rate, Rates, run
from bench.formats import Case
from penstock.testing.brokers import Mosquitto, NatsServer
from tests.connectors.brokers.servers import need

SHORT = Effort(rounds=1, events=50, total_s_max=30)
SMALLEST = Effort(rounds=1, events=2, total_s_max=30, round_s_min=0)


def test_cases_have_ratios_and_the_worst_one_a_goal() -> None:
    report = run(SHORT, families=["codecs", "interceptors"])
    found = json.loads(report.to_json())
    assert {"decode json", "encode json", "decode avro", "in decompress zstd", "in split"} <= {*found["mb_per_s"]}
    assert {"out compress zstd", "out compress bzip2", "out chunk", "out collect"} <= {*found["mb_per_s"]}
    assert found["ratios"][WORST] == min(found["ratios"].values())
    assert all(rate > 0 for rate in found["mb_per_s"].values())
    assert {*found["ratios_by_the_clock"]} == {*found["mb_per_s"]}
    page = report.to_markdown()
    assert page.count("\n| decode ") + page.count("\n| encode ") == len(report.cases["codecs"])
    assert "| in split, base64 | " in page
    assert "| `base64` |" in page


def test_ratios_are_by_cpu_time_and_those_by_the_clock_are_shown_beside_them() -> None:
    case = Case("in nats", 1_000_000, lambda: None, lambda: None, events=10)
    rounds = [Rates(ours=Rate(cpu, clock), plain=Rate(2, 3)) for cpu, clock in ((1, 6), (3, 9), (4, 3))]
    report = ConnectorsReport({"brokers": [case]}, {"in nats": rounds}, {})
    found = json.loads(report.to_json())
    assert found["ratios"][WORST] == found["ratios"]["in nats"] == median([1 / 2, 3 / 2, 4 / 2])
    assert found["ratios_by"] == "CPU time"
    assert found["ratios_by_the_clock"] == {"in nats": 2}
    assert found["events_per_s"] == {"in nats": 30}
    assert found["events_per_s_by_the_clock"] == {"in nats": 60}
    assert "| in nats | 30 | 60 | 1.50 (0.50–2.00) | 2.00 |  | nats-py |" in report.to_markdown()


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
