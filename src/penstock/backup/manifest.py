"""What one backup consists of. A backup exists once its manifest does, which is written last."""

import re
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import PurePosixPath

import msgspec

from penstock.core.errors import Damaged, UnreadableFormat

FORMAT = 1
"""Of manifests, and of the directory that they are in."""

_NAME = re.compile(r"backup-(\d{8}T\d{6}\.\d{6}Z)\.json")
_TIME = "%Y%m%dT%H%M%S.%fZ"
_HINT = "Restore an earlier backup: penstock restore BACKUP --at NAME; penstock backup BACKUP --list has the names."


class StoredFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file of the data directory as it was."""

    path: str
    """Below the data directory, with slashes."""
    size: int
    sha256: str
    """Of its bytes. They are stored under this name."""
    identity: tuple[int, int] | None = None
    """Inode and time of modification of the original, in ns. If they and the size are the same the next time, the bytes
    are not read again: the files in a data directory are replaced as a whole, or only grow.
    """


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    format: int
    version: str
    """Of the Penstock that has taken the backup."""
    taken_at: str
    position: int
    """Of the journal: everything before it is in the backup, nothing after it."""
    is_live: bool
    """The worker was running."""
    pipelines: dict[str, int]
    """The last epoch that the checkpoint of each may have."""
    files: list[StoredFile]

    @property
    def size(self) -> int:
        return sum(one.size for one in self.files)

    @property
    def has_secrets(self) -> bool:
        return any(one.path in SECRETS for one in self.files)


SECRETS = ("access.json", "token")
"""Files that `--no-secrets` leaves out."""


def manifest_name(at: datetime) -> str:
    return f"backup-{at.astimezone(UTC).strftime(_TIME)}.json"


def is_manifest(name: str) -> bool:
    return _NAME.fullmatch(name) is not None


def encode_manifest(manifest: Manifest) -> bytes:
    return msgspec.json.format(msgspec.json.encode(manifest)) + b"\n"


class _Versioned(msgspec.Struct):
    format: int | None = None


def decode_manifest(data: bytes, name: str) -> Manifest:
    """Raises Damaged; UnreadableFormat if another version wrote it."""
    try:
        found = msgspec.json.decode(data, type=_Versioned).format
        if found != FORMAT:
            raise UnreadableFormat(f"the backup {name}", found, FORMAT, "Take a new backup, in an empty directory.")
        manifest = msgspec.json.decode(data, type=Manifest)
    except msgspec.MsgspecError as error:
        raise Damaged(f"{name} is damaged: {error}", _HINT) from None
    for one in manifest.files:
        _check(one, name)
    return manifest


def _check(one: StoredFile, name: str) -> None:
    """A manifest must not make a restore write elsewhere."""
    path = PurePosixPath(one.path)
    is_digest = re.fullmatch(r"[0-9a-f]{64}", one.sha256) is not None
    if not is_digest or path.is_absolute() or not path.parts or ".." in path.parts:
        raise Damaged(f"{name} is damaged: it names the file {one.path!r} ({one.sha256!r})", _HINT)


def by_path(files: Iterable[StoredFile]) -> dict[str, StoredFile]:
    return {one.path: one for one in files}


def unreferenced(stored: Iterable[str], manifests: Sequence[Manifest]) -> list[str]:
    """The digests that no backup needs."""
    needed = {one.sha256 for manifest in manifests for one in manifest.files}
    return [digest for digest in stored if digest not in needed]
