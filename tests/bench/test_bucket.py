"""Short real runs on SeaweedFS, and what the report makes of measurements."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from bench.bucket import FULL, QUICK, STARTS, BucketReport, Effort, run
from bench.bucket_journal import SIZES, UNFOLDED_GROUP_BYTES, Appends, fill_log
from bench.contender import Measurement
from penstock.store.bucket_files import BucketFiles
from penstock.testing.faulty_bucket import FaultyBucket
from penstock.testing.memory_files import MemoryFiles

pytestmark = pytest.mark.timeout(300)

SHORT = Effort(
    rounds=1,
    measure_s=0.3,
    gigabytes=(0.001,),
    take_overs=1,
    log_groups=20,
    ingest_rounds=1,
    pipeline_rounds=0,
    pipeline_events=0,
)


def appends(megabytes: float, puts: int = 0) -> Appends:
    size = round(megabytes * 1_000_000)
    return Appends(size, 1.0, [1.0, 2.0], {"put": puts}, written=3 * size)


def report(ours: float, seconds: float, larger: float) -> BucketReport:
    found = {"bare 4 KiB": [appends(10)], "journal 4 KiB": [appends(ours, puts=5)]}
    return BucketReport(["4 KiB"], found, {"1 GB": [seconds], "10 GB": [larger]}, {}, {}, {})


def test_appends_must_reach_a_share_of_the_bare_loop_and_take_overs_end_in_time() -> None:
    good = report(ours=8, seconds=7, larger=8)
    assert good.missed() == {}
    assert good.ratios()["4 KiB"] == pytest.approx(0.8)
    assert set(report(ours=6, seconds=7, larger=8).missed()) == {"4 KiB"}
    assert set(report(ours=8, seconds=7, larger=12).missed()) == {
        "take-over 10 GB: seconds",
        "take-over 10 GB ÷ 1 GB",
    }


def test_requests_are_reported_for_each_gigabyte() -> None:
    facts = report(ours=8, seconds=7, larger=8).details()["appends"]
    assert facts["journal 4 KiB"]["put_per_gb"] == 5 * 1000 / 8  # type: ignore[index]
    assert facts["journal 4 KiB"]["written_per_byte"] == 3  # type: ignore[index]


def test_ingest_beside_a_disk_can_be_measured_alone() -> None:
    ingest = {"disk": [Measurement(200, 1.0, 100, (1.0, 2.0))], "bucket": [Measurement(100, 1.0, 100, (1.0, 2.0))]}
    alone = BucketReport([], {}, {}, ingest, {}, {})
    assert alone.ratios() == {"ingest": 0.5}
    assert len([*alone.tables()]) == alone.rounds() == 1


def test_the_efforts_have_the_sizes_that_the_goals_name() -> None:
    assert [*SIZES] == ["4 KiB", "64 KiB", "256 KiB", "8 MiB"]
    assert (QUICK.gigabytes, FULL.gigabytes) == ((0.1, 0.5), (1.0, 10.0))


@pytest.mark.long
@pytest.mark.process
def test_everything_but_spark_is_measured(tmp_path: Path) -> None:
    found = run(SHORT, tmp_path, sizes={"4 KiB": 4096, "1 MiB": 1 << 20})
    assert set(found.ratios()) == {"4 KiB", "1 MiB", "take-over 0.001 GB: seconds", STARTS, "ingest"}
    assert all(value > 0 for value in found.ratios().values())
    facts = found.details()["appends"]["journal 1 MiB"]  # type: ignore[index]
    assert facts["put_per_gb"] >= 950
    assert all(seconds >= 4 for rounds in found.take_overs.values() for seconds in rounds), "there is a lease"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.long
@pytest.mark.process
def test_take_overs_of_a_worker_with_several_shards_are_measured_alone(tmp_path: Path) -> None:
    found = run(SHORT, tmp_path, shards=2)
    assert set(found.ratios()) == {"take-over 0.001 GB: seconds"}
    assert all(seconds >= 4 for rounds in found.take_overs.values() for seconds in rounds), "there is a lease"


@pytest.mark.long
@pytest.mark.process
def test_a_log_that_is_to_be_read_at_a_start_is_not_folded(tmp_path: Path) -> None:
    bucket = FaultyBucket()
    fill_log(bucket, tmp_path / "cache", 30)
    reader = BucketFiles(bucket, MemoryFiles(), read_only=True)
    assert reader.counts().log_objects >= 30
    assert reader.counts().bytes >= 30 * UNFOLDED_GROUP_BYTES


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.process
def test_a_pipeline_is_measured_on_a_bucket_and_on_a_disk(tmp_path: Path) -> None:
    effort = replace(SHORT, ingest_rounds=0, pipeline_rounds=1, pipeline_events=50_000)
    found = run(effort, tmp_path, beside_disk=True)
    assert set(found.ratios()) == {"pipeline"}
