"""`penstock store`, as a person runs it."""

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from penstock.bucket.objects import ObjectExists
from penstock.bucket.stores import open_bucket
from penstock.cli.app import app
from penstock.client.coordinator import CoordinatorClient
from penstock.client.segments import SegmentClient
from penstock.cluster.records import ShardRecord, encode, shard_key
from penstock.core.errors import RequestError
from penstock.store.bucket_files import BucketFiles
from penstock.store.files import RealFiles
from tests.delivery.merging import Merging
from tests.support.running_worker import running_worker
from tests.support.waiting import SECONDS_MAX
from tests.support.worker_process import WorkerProcess


def penstock(*arguments: str) -> Result:
    return CliRunner(env={"COLUMNS": "200", "NO_COLOR": "1"}).invoke(app, ["store", *arguments])


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Of a worker that is stopped, with a pipeline that has committed an epoch."""
    folder = tmp_path / "data"
    with (
        running_worker(folder) as worker,
        CoordinatorClient(worker.http) as client,
        SegmentClient(worker.address) as segments,
    ):
        with segments.appender("s", create=True) as appender:
            appender.append(b"a needle in the journal")
        Merging(client, segments, "orders").epoch([b"a"])
    (folder / "access.json").write_text("{}")
    return folder


@pytest.fixture
def bucket(tmp_path: Path) -> str:
    return (tmp_path / "bucket").as_uri()


def test_a_copy_reports_what_it_has_and_how_to_start_on_it(data: Path, bucket: str) -> None:
    done = penstock("copy", str(data), bucket)
    assert done.exit_code == 0, done.output
    assert f"{data} is copied to {bucket}: 1 chapters, 1.0 MiB" in done.stdout
    assert "with access.json" in done.stdout
    assert f"penstock worker --store {bucket}" in done.stdout
    assert "without the checkpoints of orders" in done.stdout
    assert f"penstock run --checkpoint {data}/checkpoints" in done.stdout


def test_a_copy_as_json(data: Path, bucket: str, tmp_path: Path) -> None:
    found = json.loads(penstock("copy", str(data), bucket, "--no-secrets", "--json").stdout)
    assert (found["from"], found["to"], found["chapters"], found["plain_files"]) == (str(data), bucket, 1, [])
    assert found["without_checkpoint"] == ["orders"]
    back = json.loads(penstock("copy", bucket, str(tmp_path / "back"), "--json").stdout)
    assert back["bytes"] == found["bytes"]


def test_a_target_that_is_not_empty_is_refused_with_what_to_do(data: Path, tmp_path: Path) -> None:
    refused = penstock("copy", str(data), str(tmp_path))
    assert isinstance(refused.exception, RequestError)
    assert "nothing in it is overwritten" in str(refused.exception)
    assert "Name a directory that does not exist" in refused.exception.hint


def test_a_sound_store_is_verified_on_disk_and_in_a_bucket(data: Path, bucket: str) -> None:
    penstock("copy", str(data), bucket)
    for store in (str(data), bucket):
        done = penstock("verify", store)
        assert done.exit_code == 0, done.output
        assert "1 files" in done.stdout
        assert done.stdout.endswith("every checksum matches\n")
    assert "objects of the log, " in done.stdout
    found = json.loads(penstock("verify", bucket, "--json").stdout)
    assert (found["store"], found["is_sound"], found["problems"], found["orphans"]) == (bucket, True, [], [])


def test_damage_is_named_and_the_exit_status_is_1(data: Path, bucket: str, tmp_path: Path) -> None:
    penstock("copy", str(data), bucket)
    (tmp_path / "bucket" / "shards" / "0" / "parts" / "00000000-0000000a-00000001").write_bytes(b"left by a crash")
    (victim,) = (
        file
        for file in (tmp_path / "bucket").rglob("*")
        if file.is_file() and b"a needle in the journal" in file.read_bytes()
    )
    victim.write_bytes(victim.read_bytes().replace(b"needle", b"noodle"))
    done = penstock("verify", bucket)
    assert done.exit_code == 1
    assert f"damaged: {victim.relative_to(tmp_path / 'bucket')}" in done.stdout
    assert "every checksum matches" not in done.stdout
    assert json.loads(penstock("verify", bucket, "--json").stdout)["is_sound"] is False
    victim.unlink()
    missing = penstock("verify", bucket)
    assert missing.exit_code == 1
    assert "missing" in missing.stdout


def test_orphans_are_listed_and_are_no_error(data: Path, bucket: str, tmp_path: Path) -> None:
    penstock("copy", str(data), bucket)
    (tmp_path / "bucket" / "shards" / "0" / "parts" / "00000000-0000000a-00000001").write_bytes(b"left by a crash")
    done = penstock("verify", bucket)
    assert done.exit_code == 0
    assert "shards/0/parts/00000000-0000000a-00000001" in done.stdout


def test_a_place_without_a_journal_is_reported(tmp_path: Path) -> None:
    for store in (str(tmp_path / "nothing"), (tmp_path / "bucket").as_uri()):
        done = penstock("verify", store)
        assert isinstance(done.exception, RequestError)
        assert "has no journal" in str(done.exception)


@pytest.mark.process
def test_a_journal_moves_to_an_object_store_and_back_and_workers_serve_it(s3_url: str, tmp_path: Path) -> None:
    def serve(name: str, *options: str) -> Iterator[WorkerProcess]:
        with WorkerProcess(tmp_path / name, *options) as worker:
            yield worker
            worker.stop()

    def seen(worker: WorkerProcess) -> object:
        with SegmentClient(worker.address) as segments, CoordinatorClient(f"127.0.0.1:{worker.http_port}") as client:
            pipelines = [(one.name, one.merged) for one in client.pipelines()]
            return [event.data for event in segments.events("raw-orders")], pipelines

    for worker in serve("data"):
        with SegmentClient(worker.address) as segments, CoordinatorClient(f"127.0.0.1:{worker.http_port}") as client:
            merging = Merging(client, segments, "orders")
            for value in (b"a", b"b", b"c"):
                merging.epoch([value])
        expected = seen(worker)
    assert penstock("copy", str(tmp_path / "data"), s3_url).exit_code == 0
    for worker in serve("elsewhere", "--shard", "0", "--store", s3_url):
        assert seen(worker) == expected
        in_use = penstock("copy", s3_url, str(tmp_path / "back"))
        assert "is in use by worker" in str(in_use.exception)
        assert "every checksum matches" in penstock("verify", s3_url).stdout
    assert penstock("copy", s3_url, str(tmp_path / "back")).exit_code == 0
    for worker in serve("back"):
        assert seen(worker) == expected


def shard_with(bucket: str, folder: Path, shard: int, segment: str = "") -> None:
    """What a worker of this shard leaves, whether anything was written to it or not."""
    files = BucketFiles(open_bucket(bucket), RealFiles(folder / f"cache-{shard}"), shard=shard)
    files.start()
    (folder / f"machine-{shard}").mkdir()
    with running_worker(folder / f"machine-{shard}", files=files) as worker:
        if segment:
            with SegmentClient(worker.address) as segments, segments.appender(segment, create=True) as appender:
                appender.append(b"stored there")
    record = ShardRecord(shard=shard, owner="dead", term=1)
    with suppress(ObjectExists):
        open_bucket(bucket).create(shard_key(shard), [encode(record)])


@pytest.mark.parametrize("filled", [0, 1])
def test_shards_that_are_empty_do_not_keep_a_journal_from_its_way_back(
    bucket: str, tmp_path: Path, filled: int
) -> None:
    """The default is a shard for each core."""
    for shard in range(3):
        shard_with(bucket, tmp_path, shard, "raw-orders" if shard == filled else "")
    done = penstock("copy", bucket, str(tmp_path / "back"))
    assert done.exit_code == 0, done.exception
    with running_worker(tmp_path / "back") as worker, SegmentClient(worker.address) as segments:
        assert [event.data for event in segments.events("raw-orders")] == [b"stored there"]
    assert penstock("copy", bucket, (tmp_path / "elsewhere").as_uri()).exit_code == 0


def test_data_in_several_shards_are_refused_with_what_they_have(bucket: str, tmp_path: Path) -> None:
    shard_with(bucket, tmp_path, 0, "raw-orders")
    shard_with(bucket, tmp_path, 1, "raw-letters")
    refused = penstock("copy", bucket, str(tmp_path / "back"))
    assert isinstance(refused.exception, RequestError)
    assert "data in 2 shards (shard 0: segment 'raw-orders'; shard 1: segment 'raw-letters')" in str(refused.exception)
    assert not (tmp_path / "back").exists()


@pytest.mark.process
def test_ctrl_c_ends_a_copy_with_one_line_and_the_next_one_continues(data: Path, tmp_path: Path) -> None:
    """It is interrupted before the copy is compared."""
    target = tmp_path / "copy"
    script = (
        "import time\n"
        "from penstock.backup import store_copy\n"
        "def wait(*_):\n"
        "    print('comparing', flush=True)\n"
        "    time.sleep(100)\n"
        "store_copy._Copy._compare = wait\n"
        "from penstock.cli import main\n"
        "main()\n"
    )
    command = [sys.executable, "-c", script, "store", "copy", str(data), str(target)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as copying:
        assert copying.stdout is not None
        assert copying.stderr is not None
        assert copying.stdout.readline() == "comparing\n"
        copying.send_signal(signal.SIGINT)
        assert copying.wait(SECONDS_MAX) == 130
        said = copying.stderr.read()
    assert "interrupted: the same command continues the copy" in said
    assert "Traceback" not in said
    assert penstock("copy", str(data), str(target)).exit_code == 0
