"""Which files of a checkpoint a query needs to continue, or to run an epoch again."""

from pathlib import Path

import pytest

from penstock.spark.run.checkpoint_files import files_needed

ROCKSDB = [
    "state/0/0/2.zip",
    "state/0/0/6.zip",
    "state/0/0/8.zip",
    *(f"state/0/0/{version}.changelog" for version in range(1, 9)),
    "state/0/0/SSTs/000002-5f0e.sst",
    "state/0/_metadata/v2/0",
    "state/0/_stateSchema/default/0_5f0e",
]
HDFS = ["state/1/0/default/3.snapshot", *(f"state/1/0/default/{version}.delta" for version in range(1, 9))]
LOGS = [f"{log}/{epoch}" for log in ("offsets", "commits") for epoch in range(8)]
OTHERS = ["metadata", "penstock.json", "sources/0/0", "sources/0/1"]


def made(folder: Path, *names: str) -> Path:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(name)
    return folder


def needed(folder: Path, epoch: int, *, is_committed: bool) -> set[str]:
    return {*files_needed(folder, epoch, is_committed=is_committed)}


def test_an_epoch_that_is_run_again_needs_the_state_before_it_and_the_last_log_entries(tmp_path: Path) -> None:
    made(tmp_path, *ROCKSDB, *HDFS, *LOGS, *OTHERS)
    found = needed(tmp_path, 7, is_committed=False)
    logs = {f"{log}/{epoch}" for log in ("offsets", "commits") for epoch in (5, 6, 7)}
    rocksdb = {"6.zip", "8.zip", "6.changelog", "7.changelog", "8.changelog", "SSTs/000002-5f0e.sst"}
    hdfs = {"3.snapshot", *(f"{version}.delta" for version in range(3, 9))}
    assert found == (
        logs
        | {*OTHERS, "state/0/_metadata/v2/0", "state/0/_stateSchema/default/0_5f0e"}
        | {f"state/0/0/{name}" for name in rocksdb}
        | {f"state/1/0/default/{name}" for name in hdfs}
    )


def test_after_a_committed_epoch_its_own_snapshot_is_enough(tmp_path: Path) -> None:
    made(tmp_path, *ROCKSDB)
    found = {name for name in needed(tmp_path, 7, is_committed=True) if name.startswith("state/0/0/")}
    assert found == {"state/0/0/8.zip", "state/0/0/8.changelog", "state/0/0/SSTs/000002-5f0e.sst"}


def test_what_an_abandoned_later_epoch_has_left_is_not_part_of_it(tmp_path: Path) -> None:
    made(tmp_path, *ROCKSDB, *LOGS)
    found = needed(tmp_path, 5, is_committed=False)
    assert not found & {"offsets/6", "commits/6", "state/0/0/7.changelog", "state/0/0/8.zip"}
    assert {"offsets/5", "state/0/0/2.zip", "state/0/0/6.changelog"} <= found


@pytest.mark.parametrize(
    "name",
    ["offsets/.7.crc", "state/0/0/.8.changelog.5f0e.tmp", "state/0/0/8.zip.tmp", ".penstock-mirror.json", ".x.tmp"],
)
def test_partial_files_and_checksums_are_not_needed(tmp_path: Path, name: str) -> None:
    assert needed(made(tmp_path, name), 7, is_committed=False) == set()


def test_a_store_without_a_snapshot_needs_all_its_changes(tmp_path: Path) -> None:
    names = {f"state/0/0/{version}.changelog" for version in range(1, 9)}
    assert needed(made(tmp_path, *names), 7, is_committed=False) == names


def test_there_is_nothing_in_a_folder_that_does_not_exist(tmp_path: Path) -> None:
    assert needed(tmp_path / "absent", 0, is_committed=False) == set()
