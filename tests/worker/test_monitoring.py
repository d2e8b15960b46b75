"""Alert rules, dashboard and runbook fit the metrics that a worker has."""

import json
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import trustme
import yaml
from prometheus_client.parser import text_string_to_metric_families

from penstock.client.coordinator import CoordinatorClient, InputSpec
from penstock.worker.certificates import expires_at
from tests.support import http
from tests.support.open_stream import open_stream
from tests.support.running_worker import RunningWorker

ROOT = Path(__file__).parent.parent.parent
ALERTS = ROOT / "contrib" / "prometheus" / "alerts.yaml"
DASHBOARD = ROOT / "contrib" / "grafana" / "penstock.json"
_NAME = re.compile(r"\bpenstock_\w+")


def rules() -> list[dict[str, Any]]:
    return [rule for group in yaml.safe_load(ALERTS.read_text())["groups"] for rule in group["rules"]]


def scraped(worker: RunningWorker) -> str:
    status, body = http.ask(worker.ports["http"], "GET", "/metrics")
    assert status == 200
    return body.decode()


def names(worker: RunningWorker) -> set[str]:
    """Everything that an expression may name."""
    found = set[str]()
    for family in text_string_to_metric_families(scraped(worker)):
        suffixes = {"counter": ("_total",), "histogram": ("_bucket", "_sum", "_count")}.get(family.type, ("",))
        found |= {family.name + suffix for suffix in suffixes}
    return found


def test_alerts_and_dashboard_use_metrics_that_exist(worker: RunningWorker) -> None:
    known = names(worker)
    used = {name for rule in rules() for name in _NAME.findall(rule["expr"])}
    assert used - known == set()
    panels = json.loads(DASHBOARD.read_text())["panels"]
    shown = {name for panel in panels for target in panel["targets"] for name in _NAME.findall(target["expr"])}
    assert shown - known == set()
    assert len(used) > 15
    assert len(shown) > 20


def test_labels_in_alerts_are_those_of_their_metrics() -> None:
    """`{{ $labels.sink }}` in an alert about a pipeline would be empty."""
    for rule in rules():
        labels = set(re.findall(r"\$labels\.(\w+)", rule["annotations"]["summary"])) - {"instance"}
        kinds = {name.split("_")[1] for name in _NAME.findall(rule["expr"])}
        allowed = {"sink": {"sink", "pipeline"}, "window": {"pipeline"}, "refused": {"port"}}
        assert all(labels <= allowed.get(kind, {kind}) for kind in kinds), rule["alert"]


def test_the_runbook_has_a_section_for_each_alert_and_no_other() -> None:
    sections = re.findall(r"^## (\w+)$", (ROOT / "docs" / "runbook.md").read_text(), re.MULTILINE)
    assert sections == [rule["alert"] for rule in rules()]


def test_what_alerts_watch_has_values(worker: RunningWorker) -> None:
    with open_stream(worker.ports["connector"], "orders", "till") as till:
        till.send(1, 0)
        shown = scraped(worker)
    assert 'penstock_source_sessions{source="orders"} 1.0' in shown
    assert re.search(r'penstock_source_credits\{source="orders"\} [1-9]', shown)
    assert 'penstock_source_has_room{source="orders"} 1.0' in shown
    assert "penstock_store_disk_full 0.0" in shown
    assert "penstock_store_damaged 0.0" in shown
    assert re.search(r"penstock_store_fsync_seconds_count [1-9]", shown)
    assert re.search(r"^penstock_store_disk_free_bytes [1-9]", shown, re.MULTILINE)
    assert re.search(r'penstock_build_info\{python="3[\d.]+",version="\S+"\} 1.0', shown)


def test_every_state_that_blocks_a_sink_has_an_alert(worker: RunningWorker) -> None:
    states = {name for name in names(worker) if name.startswith("penstock_sink_") and name.endswith(("ed", "lost"))}
    assert states == {rule["expr"].removesuffix(" == 1") for rule in rules() if "_sink_" in rule["expr"]}


def test_a_driver_that_is_silent_is_distinguished_from_one_that_has_stopped(
    worker: RunningWorker, client: CoordinatorClient
) -> None:
    """The alert needs nothing but the age: a silent pipeline no longer counts as running."""
    age = 'penstock_pipeline_heartbeat_age_seconds{pipeline="orders"}'
    generation = client.start("orders", {"in": InputSpec(["shops"])}, ["out"]).generation
    client.heartbeat("orders", generation)
    assert age in scraped(worker)
    client.heartbeat("orders", generation, failed=True)
    assert age in scraped(worker)
    client.heartbeat("orders", generation, stopped=True)
    assert age not in scraped(worker)


@pytest.mark.parametrize("year", [2049, 2050])
def test_the_expiry_of_a_certificate_is_known(tmp_path: Path, year: int) -> None:
    """Dates from 2050 on have another form."""
    file, expiry = tmp_path / "cert.pem", datetime(year, 6, 1, tzinfo=UTC)
    leaf = trustme.CA().issue_cert("localhost", not_after=expiry)
    leaf.cert_chain_pems[0].write_to_path(file)
    assert expires_at(file) == expiry.timestamp()
    file.write_text("no certificate")
    assert expires_at(file) is None
    assert expires_at(tmp_path / "none") is None
