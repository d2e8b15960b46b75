"""What window operators report is shown until their pipeline is dropped, reset, or reports something newer."""

import urllib.request

import pytest

from penstock.client.coordinator import BucketNumbers, CoordinatorClient, InputSpec
from penstock.core.errors import Fenced, RequestError
from penstock.protocol.api.status import OperatorStatus
from tests.support.running_worker import RunningWorker
from tests.support.waiting import SECONDS_MAX


def numbers(bucket: int, **given: int) -> BucketNumbers:
    zero = dict.fromkeys(("open_windows", "keys", "state_bytes", "late_kept", "late_dropped"), 0)
    return BucketNumbers(bucket=bucket, **zero | given)


def metrics(worker: RunningWorker) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{worker.ports['http']}/metrics", timeout=SECONDS_MAX) as response:
        text: str = response.read().decode()
        return text


def test_status_and_metrics_show_operators_and_not_each_of_their_buckets(
    worker: RunningWorker, client: CoordinatorClient
) -> None:
    run = client.start("p", {"in": InputSpec(["s"])})
    told = [
        numbers(0, open_windows=2, keys=3, state_bytes=100, late_kept=1, waiting=3, first_end=-7, next_time=-7),
        numbers(1, open_windows=1, keys=4, state_bytes=70, late_dropped=5),
    ]
    client.report_windows("p", "counts", 7, told, generation=run.generation)
    assert client.status().windows == [
        OperatorStatus(
            pipeline="p", operator="counts", epoch=7, buckets=2, open_windows=3, keys=7,
            state_bytes=170, bucket_bytes=100, late_kept=1, late_dropped=5, waiting=3, first_end=-7,
        )
    ]  # fmt: skip
    shown = metrics(worker)
    assert 'penstock_window_state_bytes{operator="counts",pipeline="p"} 170.0' in shown
    assert 'penstock_window_late_kept_total{operator="counts",pipeline="p"} 1.0' in shown
    assert "bucket=" not in shown.replace("le=", "")
    client.drop("p")
    assert client.status().windows == []
    assert "penstock_window_state_bytes{" not in metrics(worker)


def test_an_older_epoch_changes_nothing_and_an_older_generation_is_refused(client: CoordinatorClient) -> None:
    old = client.start("p", {"in": InputSpec(["s"])})
    client.report_windows("p", "counts", 7, [numbers(0, keys=7)], generation=old.generation)
    client.report_windows("p", "counts", 6, [numbers(0, keys=6), numbers(1, keys=1)], generation=old.generation)
    assert client.status().windows[0].keys == 8
    client.start("p", {"in": InputSpec(["s"])})
    with pytest.raises(Fenced):
        client.report_windows("p", "counts", 8, [numbers(0)], generation=old.generation)
    client.report_windows("p", "counts", 8, [numbers(0)])
    assert client.status().windows[0].keys == 1


def test_a_pipeline_that_is_reset_has_no_windows(client: CoordinatorClient) -> None:
    client.start("p", {"in": InputSpec(["s"])})
    client.report_windows("p", "counts", 7, [numbers(0)])
    client.reset("p")
    assert client.status().windows == []


def test_an_invalid_report_is_refused(client: CoordinatorClient) -> None:
    client.start("p", {"in": InputSpec(["s"])})
    with pytest.raises(RequestError, match=r"buckets\[0\]\.keys: expected `int` >= 0"):
        client.report_windows("p", "counts", 7, [numbers(1, keys=-1)])
    assert client.status().windows == []
