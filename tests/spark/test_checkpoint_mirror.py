"""A checkpoint is mirrored once, completely, before it counts, and restored as it was, or not at all."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from random import Random
from uuid import uuid4

import pytest

from penstock.bucket.checkpoints import Current, ObjectName, Stage, named, read_manifest, stage_of, sweep
from penstock.bucket.stores import open_bucket
from penstock.client.coordinator import CoordinatorClient, InputSpec
from penstock.core.errors import (
    BucketForbidden,
    BucketUnavailable,
    BucketUnreachable,
    Damaged,
    Fenced,
    RequestError,
)
from penstock.protocol.api.pipelines import Started
from penstock.spark.run import checkpoint_mirror
from penstock.spark.run.checkpoint_files import files_needed
from penstock.spark.run.checkpoint_mirror import (
    MARKER,
    CheckpointMirror,
    is_superseded,
    mirror_running,
    mirror_unmerged,
    restore,
    restored_if_needed,
)
from penstock.spark.run.generation import ExecutorAccess, start_generation
from tests.spark.mirror_scene import TroubledBucket, WrittenCheckpoint, contents
from tests.support.running_worker import RunningWorker, running_worker


@pytest.fixture
def bucket() -> TroubledBucket:
    return TroubledBucket(open_bucket(f"memory://{uuid4().hex}"))


@pytest.fixture
def checkpoint(tmp_path: Path) -> WrittenCheckpoint:
    return WrittenCheckpoint(tmp_path / "here" / "p")


@pytest.fixture
def mirror(checkpoint: WrittenCheckpoint, bucket: TroubledBucket) -> CheckpointMirror:
    return CheckpointMirror(checkpoint.folder, bucket, "p")


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint_mirror, "_LOOK_SECONDS", 0.05)


def needed(folder: Path, epoch: int) -> dict[str, bytes]:
    return {name: (folder / name).read_bytes() for name in files_needed(folder, epoch, is_committed=False)}


def kinds(keys: list[str]) -> list[str]:
    return sorted(name.kind for key in keys if (name := ObjectName.parse(key)) is not None)


def test_a_restored_checkpoint_has_the_files_that_its_epoch_needs(
    checkpoint: WrittenCheckpoint, mirror: CheckpointMirror, bucket: TroubledBucket, tmp_path: Path
) -> None:
    key = ""
    for epoch in range(12):
        checkpoint.run(epoch)
        if epoch % 5 == 4:
            checkpoint.snapshot(epoch)
        key = mirror.mirror(1, epoch, key)
    (checkpoint.folder / "metadata").chmod(0o600)
    key = mirror.mirror(1, 12, key)
    restore(bucket, key, tmp_path / "there" / "p")
    assert contents(tmp_path / "there" / "p") == needed(checkpoint.folder, 12)
    assert (tmp_path / "there" / "p" / "metadata").stat().st_mode & 0o777 == 0o600


def test_an_epoch_writes_one_object_with_what_is_new_and_its_manifest(
    checkpoint: WrittenCheckpoint, mirror: CheckpointMirror, bucket: TroubledBucket
) -> None:
    key = ""
    for epoch in range(5):
        checkpoint.run(epoch)
        bucket.created.clear()
        key = mirror.mirror(1, epoch, key)
        assert kinds(bucket.created) == ["data", "manifest"]
    assert bucket.read == [], "the mirror remembers its last manifest"
    data = next(bucket.get(one).data for one in bucket.created if "-data-" in one)
    assert data.count(b"changes 4 of") == 2
    assert b"changes 3" not in data


def test_another_process_continues_from_the_ledgers_manifest_and_uploads_nothing_twice(
    checkpoint: WrittenCheckpoint, mirror: CheckpointMirror, bucket: TroubledBucket
) -> None:
    checkpoint.run(0)
    first = mirror.mirror(1, 0, "")
    checkpoint.run(1)
    bucket.created.clear()
    CheckpointMirror(checkpoint.folder, bucket, "p").mirror(2, 1, first)
    data = b"".join(bucket.get(one).data for one in bucket.created if "-data-" in one)
    assert b"changes 1" in data
    assert b"changes 0" not in data


def test_a_file_that_was_replaced_is_mirrored_again(
    checkpoint: WrittenCheckpoint, mirror: CheckpointMirror, bucket: TroubledBucket, tmp_path: Path
) -> None:
    checkpoint.run(0)
    checkpoint.write("penstock.json", "old")
    first = mirror.mirror(1, 0, "")
    checkpoint.write("penstock.json", "new")
    second = mirror.mirror(1, 1, first)
    restore(bucket, second, tmp_path / "p")
    assert (tmp_path / "p" / "penstock.json").read_text() == "new"


def test_large_files_have_objects_of_their_own_in_pieces(
    checkpoint: WrittenCheckpoint,
    mirror: CheckpointMirror,
    bucket: TroubledBucket,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(checkpoint_mirror, "_OBJECT_BYTES", 1000)
    monkeypatch.setattr(checkpoint_mirror, "_SMALL_BYTES", 300)
    random = Random(1)
    for number, size in enumerate((0, 1, 299, 300, 301, 999, 1000, 1001, 12_345)):
        checkpoint.write(f"state/0/0/SSTs/{number}-x.sst", random.randbytes(size))
    key = mirror.mirror(1, 0, "")
    restore(bucket, key, tmp_path / "p")
    assert contents(tmp_path / "p") == contents(checkpoint.folder)
    assert all(one.size <= 1000 for one in bucket.list("") if "-data-" in one.key)
    shared = [piece.object for file in read_manifest(bucket, key).files for piece in file.pieces if file.size > 300]
    assert len(shared) == len({*shared}), "no other file is in them"


@pytest.mark.parametrize("has_effect", [True, False])
def test_writes_with_an_unknown_outcome_are_repeated_until_they_are_durable(
    checkpoint: WrittenCheckpoint,
    mirror: CheckpointMirror,
    bucket: TroubledBucket,
    tmp_path: Path,
    has_effect: bool,
) -> None:
    checkpoint.run(0)
    bucket.fail(3, has_effect=has_effect)
    restore(bucket, mirror.mirror(1, 0, ""), tmp_path / "p")
    assert contents(tmp_path / "p") == contents(checkpoint.folder)


def test_a_bucket_that_stays_unavailable_fails_the_epoch_in_the_end(
    checkpoint: WrittenCheckpoint,
    mirror: CheckpointMirror,
    bucket: TroubledBucket,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(checkpoint_mirror, "_UNAVAILABLE_SECONDS_MAX", 0.3)
    checkpoint.run(0)
    bucket.trouble = lambda _: BucketUnreachable("no route")
    with pytest.raises(BucketUnavailable):
        mirror.mirror(1, 0, "")
    assert not (checkpoint.folder / MARKER).exists()


def test_a_refusal_is_raised_at_once(
    checkpoint: WrittenCheckpoint, mirror: CheckpointMirror, bucket: TroubledBucket
) -> None:
    checkpoint.run(0)
    bucket.trouble = lambda _: BucketForbidden("no")
    with pytest.raises(BucketForbidden):
        mirror.mirror(1, 0, "")


def test_a_replaced_generation_stops_waiting_for_the_bucket(
    checkpoint: WrittenCheckpoint, mirror: CheckpointMirror, bucket: TroubledBucket
) -> None:
    def keep_on() -> None:
        raise Fenced("generation 1 was replaced")

    checkpoint.run(0)
    bucket.trouble = lambda _: BucketUnreachable("no route")
    with pytest.raises(Fenced):
        mirror.mirror(1, 0, "", keep_on)


def test_a_mirror_whose_base_is_lost_mirrors_everything(
    checkpoint: WrittenCheckpoint, bucket: TroubledBucket, tmp_path: Path
) -> None:
    checkpoint.run(0)
    lost = named("p", 1, 0, "manifest", b"lost")
    key = CheckpointMirror(checkpoint.folder, bucket, "p").mirror(1, 1, lost)
    restore(bucket, key, tmp_path / "p")
    assert contents(tmp_path / "p") == contents(checkpoint.folder)


# With a worker.


@pytest.fixture
def worker(tmp_path: Path, bucket: TroubledBucket) -> Iterator[RunningWorker]:
    with running_worker(tmp_path / "data", bucket=bucket) as running:
        yield running


@pytest.fixture
def coordinator(worker: RunningWorker) -> Iterator[CoordinatorClient]:
    with CoordinatorClient(worker.http, 0) as client:
        yield client


@pytest.fixture
def store(bucket: TroubledBucket, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(checkpoint_mirror, "bucket_of", lambda _: bucket)
    return f"somewhere://{uuid4().hex}"


def begin(coordinator: CoordinatorClient, outputs: list[str]) -> int:
    return coordinator.start("p", {"in": InputSpec(["s"])}, outputs).generation


def test_an_epoch_that_is_merged_is_not_mirrored_again(
    checkpoint: WrittenCheckpoint, coordinator: CoordinatorClient, bucket: TroubledBucket, store: str
) -> None:
    generation, place = begin(coordinator, ["out"]), str(checkpoint.folder)
    checkpoint.run(0)
    key = mirror_running(coordinator, store, place, "p", generation, 0)
    coordinator.merge("p", 0, [], generation=generation, manifest=key)
    assert coordinator.mirrored("p").manifest == key
    bucket.created.clear()
    assert mirror_running(coordinator, store, place, "p", generation, 0) == ""
    assert bucket.created == []


def test_only_local_checkpoints_of_a_generation_are_mirrored(coordinator: CoordinatorClient, store: str) -> None:
    for place, generation in ((None, 1), ("s3a://bucket/p", 1), ("/somewhere", None)):
        assert mirror_running(coordinator, store, place, "p", generation, 0) == ""


@pytest.fixture
def mirroring(tmp_path: Path) -> Iterator[RunningWorker]:
    """A worker whose bucket drivers can open, too."""
    with running_worker(tmp_path / "data", bucket=open_bucket((tmp_path / "bucket").as_uri())) as running:
        yield running


CLUSTER = ExecutorAccess("worker:7102")


@pytest.mark.parametrize("outputs", [["out"], []])
def test_on_a_cluster_nothing_is_mirrored_though_the_worker_has_a_bucket(
    checkpoint: WrittenCheckpoint, mirroring: RunningWorker, outputs: list[str]
) -> None:
    def options(executors: ExecutorAccess | None) -> dict[str, str]:
        place = str(checkpoint.folder)
        inputs = {"in": ["s"]}
        with start_generation("p", mirroring.http, inputs, outputs, checkpoint=place, executors=executors) as run:
            return {**run.input("in"), **run.output()}

    assert "store" in options(None)
    assert "store" not in options(CLUSTER)
    assert options(CLUSTER)["advertisedWorker"] == "worker:7102"


def test_a_mirrored_checkpoint_of_sparks_own_sink_cannot_continue_where_nothing_is_mirrored(
    checkpoint: WrittenCheckpoint, mirroring: RunningWorker, tmp_path: Path
) -> None:
    """The ledger would name it forever, and another machine could restore it."""
    place = str(checkpoint.folder)
    with CoordinatorClient(mirroring.http, 0) as coordinator:
        generation = begin(coordinator, [])
        checkpoint.run(0)
        mirror_unmerged(coordinator, (tmp_path / "bucket").as_uri(), place, "p", generation)
    with pytest.raises(RequestError, match="which a Spark cluster does not do"):
        start_generation("p", mirroring.http, {"in": ["s"]}, [], checkpoint=place, executors=CLUSTER)


def test_an_older_generation_mirrors_nothing(
    checkpoint: WrittenCheckpoint, coordinator: CoordinatorClient, bucket: TroubledBucket, store: str
) -> None:
    old = begin(coordinator, ["out"])
    begin(coordinator, ["out"])
    checkpoint.run(0)
    with pytest.raises(Fenced):
        mirror_running(coordinator, store, str(checkpoint.folder), "p", old, 0)
    with pytest.raises(Fenced):
        mirror_unmerged(coordinator, store, str(checkpoint.folder), "p", old)
    assert bucket.created == []


def test_with_sparks_own_sinks_an_epoch_is_mirrored_before_it_runs_and_when_it_is_committed(
    checkpoint: WrittenCheckpoint, coordinator: CoordinatorClient, bucket: TroubledBucket, store: str
) -> None:
    generation, place = begin(coordinator, []), str(checkpoint.folder)
    mirror_unmerged(coordinator, store, place, "p", generation)
    assert coordinator.mirrored("p").manifest == "", "there is nothing yet"
    checkpoint.run(0)
    for stage in (Stage(0, is_committed=False), Stage(0, is_committed=True)):
        bucket.created.clear()
        mirror_unmerged(coordinator, store, place, "p", generation)
        assert stage_of(coordinator.mirrored("p").manifest) == stage
        checkpoint_mirror._mirror_of.cache_clear()  # as in the process of another load
        mirror_unmerged(coordinator, store, place, "p", generation)
        assert len(bucket.created) == 2
        checkpoint.write("commits/0", "commit of 0")


def test_a_checkpoint_is_superseded_once_another_machine_has_merged(
    checkpoint: WrittenCheckpoint, coordinator: CoordinatorClient, worker: RunningWorker, store: str
) -> None:
    def superseded() -> bool:
        return is_superseded(str(checkpoint.folder), "p", worker.http, retry_seconds=0)

    generation, place = begin(coordinator, ["out"]), str(checkpoint.folder)
    checkpoint.run(0)
    assert not superseded()
    key = mirror_running(coordinator, store, place, "p", generation, 0)
    assert not superseded()
    coordinator.merge("p", 0, [], generation=generation, manifest=key)
    assert not superseded()
    coordinator.merge("p", 1, [], generation=generation, manifest=named("p", generation, 1, "manifest", b"elsewhere"))
    assert superseded()


# Restoring.


def started(bucket: TroubledBucket, manifest: str) -> Started:
    return Started(1, 1, 0, 7101, False, bucket.url, manifest)


@pytest.fixture
def opened_by_url(bucket: TroubledBucket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint_mirror, "bucket_of", lambda _: bucket)


@pytest.mark.usefixtures("opened_by_url")
def test_a_folder_that_has_the_ledgers_epoch_is_used_as_it_is(
    checkpoint: WrittenCheckpoint, mirror: CheckpointMirror, bucket: TroubledBucket
) -> None:
    checkpoint.run(0)
    first = mirror.mirror(1, 0, "")
    checkpoint.run(1)
    second = mirror.mirror(1, 1, first)
    for merged in (first, second):  # the second may not be merged, if the driver was killed
        assert not restored_if_needed(str(checkpoint.folder), started(bucket, merged))
    assert "offsets/1" in contents(checkpoint.folder)


@pytest.mark.usefixtures("opened_by_url")
def test_a_folder_from_before_another_machine_ran_the_pipeline_is_replaced(
    checkpoint: WrittenCheckpoint, mirror: CheckpointMirror, bucket: TroubledBucket, tmp_path: Path
) -> None:
    checkpoint.run(0)
    first = mirror.mirror(1, 0, "")
    there = WrittenCheckpoint(tmp_path / "there" / "p")
    assert restored_if_needed(str(there.folder), started(bucket, first))
    assert not restored_if_needed(str(there.folder), started(bucket, first)), "it has that one now"
    checkpoint.run(1, "of the first machine, which is killed before it can mirror it")
    there.run(1, "of the second machine")
    second = CheckpointMirror(there.folder, bucket, "p").mirror(2, 1, first)
    assert restored_if_needed(str(checkpoint.folder), started(bucket, second))
    assert contents(checkpoint.folder) == needed(there.folder, 1)
    aside = checkpoint.folder.with_name("p~reset")
    assert b"the first machine" in contents(aside)["offsets/1"]


@pytest.mark.usefixtures("opened_by_url")
def test_without_a_bucket_or_a_mirrored_checkpoint_nothing_is_restored(
    checkpoint: WrittenCheckpoint, bucket: TroubledBucket
) -> None:
    checkpoint.run(0)
    assert not restored_if_needed(str(checkpoint.folder), started(bucket, ""))
    assert not restored_if_needed(str(checkpoint.folder), Started(1, 1, 0, 7101, False, None, "something"))
    assert not restored_if_needed("s3a://bucket/p", started(bucket, "something"))


@pytest.mark.parametrize("kind", ["manifest", "data"])
def test_a_missing_object_is_named_and_the_folder_stays_as_it_was(
    checkpoint: WrittenCheckpoint, mirror: CheckpointMirror, bucket: TroubledBucket, tmp_path: Path, kind: str
) -> None:
    checkpoint.run(0)
    key = mirror.mirror(1, 0, "")
    (lost,) = [one.key for one in bucket.list("") if f"-{kind}-" in one.key]
    bucket.delete([lost])
    there = tmp_path / "there" / "p"
    there.mkdir(parents=True)
    (there / "mine").touch()
    with pytest.raises(Damaged, match=f"{lost}: the object is missing") as error:
        restore(bucket, key, there)
    assert "penstock pipeline reset p" in error.value.hint
    assert [*contents(there)] == ["mine"]
    assert [*there.parent.iterdir()] == [there]


def test_damaged_bytes_are_not_restored(
    checkpoint: WrittenCheckpoint, mirror: CheckpointMirror, bucket: TroubledBucket, tmp_path: Path
) -> None:
    checkpoint.run(0)
    key = mirror.mirror(1, 0, "")
    (one,) = [one.key for one in bucket.list("") if "-data-" in one.key]
    stored = bucket.get(one)
    bucket.replace(one, stored.data[::-1], stored.version)
    with pytest.raises(Damaged, match="its bytes have changed"):
        restore(bucket, key, tmp_path / "p")
    assert not (tmp_path / "p").exists()


def test_a_restore_that_was_killed_is_done_again(
    checkpoint: WrittenCheckpoint, mirror: CheckpointMirror, bucket: TroubledBucket, tmp_path: Path
) -> None:
    checkpoint.run(0)
    key = mirror.mirror(1, 0, "")
    (tmp_path / "p~restoring").mkdir()
    (tmp_path / "p~restoring" / "half").touch()
    restore(bucket, key, tmp_path / "p")
    assert contents(tmp_path / "p") == contents(checkpoint.folder)


def test_a_restored_checkpoint_refers_to_its_own_folder(
    checkpoint: WrittenCheckpoint, mirror: CheckpointMirror, bucket: TroubledBucket, tmp_path: Path
) -> None:
    schema = "state/0/_stateSchema/default/0_5f0e"
    checkpoint.write("state/0/_metadata/v2/0", f'{{"stateSchemaFilePaths":["file:{checkpoint.folder}/{schema}"]}}')
    restore(bucket, mirror.mirror(1, 0, ""), tmp_path / "p")
    assert f"file:{tmp_path}/p/{schema}" in (tmp_path / "p/state/0/_metadata/v2/0").read_text()


# Machines that die, zombies, and sweeps by states of the ledger that are long past.


class Ledger:
    """What the worker's ledger has of one pipeline."""

    def __init__(self) -> None:
        self.generation = 0
        self.manifest = ""
        self.merged = -1

    def start(self) -> int:
        self.generation += 1
        return self.generation

    def merge(self, generation: int, epoch: int, manifest: str) -> None:
        if generation != self.generation:
            raise Fenced("an older generation")
        if epoch == self.merged + 1:
            self.merged, self.manifest = epoch, manifest


class Machine:
    """Runs the pipeline with a folder of its own, step by step: restore, then for each epoch ask, mirror, merge."""

    def __init__(
        self, folder: Path, bucket: TroubledBucket, ledger: Ledger, truth: dict[str, dict[str, bytes]]
    ) -> None:
        self.folder = folder
        self._bucket = bucket
        self._ledger = ledger
        self._truth = truth
        self._written = WrittenCheckpoint(folder, partitions=1)

    def start(self) -> None:
        self.generation = self._ledger.start()
        self._mirror = CheckpointMirror(self.folder, self._bucket, "p")
        restored_if_needed(str(self.folder), started(self._bucket, self._ledger.manifest))
        if self._ledger.manifest:
            assert contents(self.folder).items() >= self._truth[self._ledger.manifest].items()
        self._epoch = self._ledger.merged + 1
        self._before, self._next = self._ledger.manifest, self.run

    def step(self) -> None:
        self._next()

    def run(self) -> None:
        self._written.run(self._epoch, f"by {self.generation}" if self._epoch % 3 else "")  # some bytes come again
        if self._epoch % 4 == 3:
            self._written.snapshot(self._epoch)
        for old in [*self.folder.glob("state/0/0/*")]:  # Spark retains few versions
            number = old.name.partition(".")[0]
            if number.isdecimal() and int(number) < self._epoch - 5 and not old.name.startswith("."):
                old.unlink()
        self._next = self.mirror

    def mirror(self) -> None:
        self._manifest = self._mirror.mirror(self.generation, self._epoch, self._before)
        self._truth[self._manifest] = needed(self.folder, self._epoch)
        self._next = self.merge

    def merge(self) -> None:
        self._ledger.merge(self.generation, self._epoch, self._manifest)
        self._before, self._epoch, self._next = self._manifest, self._epoch + 1, self.run


@pytest.mark.usefixtures("opened_by_url")
@pytest.mark.parametrize("seed", range(25))
def test_the_ledgers_checkpoint_can_always_be_restored_whoever_is_still_alive(
    seed: int, bucket: TroubledBucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoint_mirror, "sync_checkpoint", lambda _: None)
    random, ledger, truth = Random(seed), Ledger(), dict[str, dict[str, bytes]]()
    states: list[Current] = []
    machines = [Machine(tmp_path / str(number) / "p", bucket, ledger, truth) for number in range(3)]
    alive: list[Machine] = []
    for _ in range(120):
        states.append(Current(ledger.generation, ledger.manifest))
        match random.choices(["start", "step", "sweep", "lose"], [2, 12, 2, 1])[0]:
            case "start":  # the machine that ran before may go on as a zombie
                machine = random.choice(machines)
                machine.start()
                alive = [*(one for one in alive if one is not machine), machine]
            case "step" if alive:
                machine = random.choice([alive[-1], alive[-1], *alive])
                try:
                    machine.step()
                except Fenced:
                    alive.remove(machine)
            case "sweep":  # by any durable state that a worker may still have
                sweep(bucket, None, {"p": random.choice(states[-40:])}, ledger.generation)
            case "lose" if len(alive) > 1:  # the disk of a machine that does not run any more
                shutil.rmtree(machines[0].folder, ignore_errors=True)
                alive = [one for one in alive if one is not machines[0]]
    if ledger.manifest:
        restore(bucket, ledger.manifest, tmp_path / "last" / "p")
        assert contents(tmp_path / "last" / "p") == truth[ledger.manifest]


def test_after_a_sweep_the_bucket_has_only_what_the_ledger_needs(
    checkpoint: WrittenCheckpoint, mirror: CheckpointMirror, bucket: TroubledBucket
) -> None:
    key = ""
    for epoch in range(40):
        checkpoint.run(epoch)
        if epoch % 10 == 5:
            checkpoint.snapshot(epoch)
        key = mirror.mirror(1, epoch, key)
    CheckpointMirror(checkpoint.folder, bucket, "p").mirror(1, 40, key)  # and killed before the merge
    sweep(bucket, None, {"p": Current(2, key)}, 2)
    assert {one.key for one in bucket.list("")} == {key, *read_manifest(bucket, key).objects}
    assert len([*bucket.list("")]) < 12
