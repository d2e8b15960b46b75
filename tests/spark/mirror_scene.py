"""A checkpoint's folder as Spark would write it, a bucket with troubles, and a ledger of what is mirrored."""

import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from penstock.bucket.objects import Bucket, ListedObject, StoredObject
from penstock.core.errors import BucketThrottled, BucketUnreachable
from penstock.core.types import Buffer


class TroubledBucket:
    """Calls `trouble` before each write: if that returns an error, it is raised, after the write if `has_effect`."""

    def __init__(self, bucket: Bucket) -> None:
        self._bucket = bucket
        self._lock = threading.Lock()
        self.created: list[str] = []
        self.read: list[str] = []
        self.trouble: Callable[[str], Exception | None] = lambda _: None
        self.has_effect = False

    @property
    def url(self) -> str:
        return self._bucket.url

    def fail(self, times: int, *, has_effect: bool = False) -> None:
        """So many of the next writes."""
        errors = [BucketThrottled("slow down"), BucketUnreachable("no route")] * times
        self.has_effect = has_effect

        def trouble(_: str) -> Exception | None:
            with self._lock:
                return errors.pop() if len(errors) > times else None

        self.trouble = trouble

    def create(self, key: str, buffers: Sequence[Buffer]) -> str:
        error = self.trouble(key)
        if error is not None and not self.has_effect:
            raise error
        version = self._bucket.create(key, buffers)
        with self._lock:
            self.created.append(key)
        if error is not None:
            raise error
        return version

    def get(self, key: str) -> StoredObject:
        with self._lock:
            self.read.append(key)
        return self._bucket.get(key)

    def get_range(self, key: str, start: int, length: int) -> bytes:
        return self._bucket.get_range(key, start, length)

    def replace(self, key: str, data: bytes, version: str) -> str:
        return self._bucket.replace(key, data, version)

    def delete(self, keys: Sequence[str]) -> None:
        self._bucket.delete(keys)

    def list(self, prefix: str) -> Iterator[ListedObject]:
        return self._bucket.list(prefix)


class WrittenCheckpoint:
    """What Spark writes to a checkpoint with one operator: changes in each epoch, a snapshot now and then."""

    def __init__(self, folder: Path, partitions: int = 2) -> None:
        self.folder = folder
        self._partitions = partitions

    def write(self, name: str, data: bytes | str) -> None:
        """As Spark does: the name appears when the file is complete, and gets a checksum beside it."""
        file = self.folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        partial = file.with_name(f".{file.name}.tmp")
        partial.write_bytes(data if isinstance(data, bytes) else data.encode())
        partial.replace(file)
        file.with_name(f".{file.name}.crc").write_bytes(b"crc")

    def run(self, epoch: int, text: str = "") -> None:
        """Up to the commit of the sink. `text` distinguishes attempts."""
        if epoch == 0:
            self.write("metadata", '{"id": "5f0e"}')
            self.write("state/0/_metadata/v2/0", "{}")
        else:
            self.write(f"commits/{epoch - 1}", f"commit of {epoch - 1}")
        self.write(f"offsets/{epoch}", f"offsets of {epoch} {text}")
        for partition in range(self._partitions):
            self.write(f"state/0/{partition}/{epoch + 1}.changelog", f"changes {epoch} of {partition} {text}")

    def snapshot(self, version: int, text: str = "") -> None:
        for partition in range(self._partitions):
            self.write(f"state/0/{partition}/SSTs/{version:06}-5f0e.sst", f"table {version} of {partition} {text}")
            self.write(f"state/0/{partition}/{version}.zip", f"snapshot {version} of {partition} {text}")

    def delete(self, name: str) -> None:
        (self.folder / name).unlink()


def contents(folder: Path) -> dict[str, bytes]:
    """Of all files that are not hidden."""
    files = [file for file in folder.rglob("*") if file.is_file() and not file.name.startswith(".")]
    return {file.relative_to(folder).as_posix(): file.read_bytes() for file in files}
