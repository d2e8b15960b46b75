"""The directory of backups: what a failure leaves, and what it refuses."""

from datetime import UTC, datetime
from pathlib import Path

import pytest

from penstock.backup.archive import Archive, restore
from penstock.backup.manifest import FORMAT, Manifest, StoredFile, decode_manifest, encode_manifest, manifest_name
from penstock.core.errors import Damaged, RequestError, StoreInUse, UnreadableFormat


class Bytes:
    def __init__(self, data: bytes) -> None:
        self._data = data

    def read(self, offset: int, length: int) -> bytes:
        return self._data[offset : offset + length]


def ignore(_: int) -> None:
    pass


def stored(archive: Archive, path: str, data: bytes) -> StoredFile:
    digest, size = archive.put(Bytes(data), None, ignore)
    return StoredFile(path=path, size=size, sha256=digest)


def manifest_of(*files: StoredFile) -> Manifest:
    return Manifest(format=FORMAT, version="0", taken_at="", position=0, is_live=False, pipelines={}, files=list(files))


def added(archive: Archive, second: int, **files: bytes) -> str:
    name = manifest_name(datetime(2026, 3, 1, 9, 30, second, tzinfo=UTC))
    with archive.writing():
        archive.add(name, manifest_of(*(stored(archive, path, data) for path, data in files.items())))
    return name


def objects(directory: Path) -> int:
    return len([*directory.glob("objects/*/*")])


def test_backups_share_files_with_the_same_bytes(tmp_path: Path) -> None:
    archive = Archive(tmp_path / "b")
    added(archive, 1, one=b"same", two=b"old")
    added(archive, 2, one=b"same", two=b"new")
    assert objects(tmp_path / "b") == 3


def test_older_backups_are_deleted_with_all_bytes_that_nothing_needs(tmp_path: Path) -> None:
    archive = Archive(tmp_path / "b")
    first, last = added(archive, 1, one=b"same", two=b"old"), added(archive, 2, one=b"same", two=b"new")
    with archive.writing():
        archive.put(Bytes(b"of a backup that failed"), None, ignore)
        assert archive.keep_last(1) == [first]
    assert (archive.names(), objects(tmp_path / "b")) == ([last], 2)
    restore(archive, archive.manifest(last), tmp_path / "d")
    assert (tmp_path / "d" / "two").read_bytes() == b"new"


def test_a_damaged_file_is_refused_with_its_name_and_nothing_is_restored(tmp_path: Path) -> None:
    archive = Archive(tmp_path / "b")
    name = added(archive, 1, journal=b"good", token=b"secret")
    manifest = archive.manifest(name)
    archive.path(manifest.files[1]).write_bytes(b"sECret")
    with pytest.raises(Damaged, match=r"objects/.*which is token"):
        restore(archive, manifest, tmp_path / "d")
    assert sorted(one.name for one in tmp_path.iterdir()) == ["b"]


def test_a_missing_file_is_refused_with_its_name(tmp_path: Path) -> None:
    archive = Archive(tmp_path / "b")
    manifest = archive.manifest(added(archive, 1, token=b"secret"))
    archive.path(manifest.files[0]).unlink()
    with pytest.raises(Damaged, match="which is token: the file is missing"):
        archive.copy(manifest.files[0], None, ignore)


def test_the_next_backup_of_the_same_bytes_repairs_a_truncated_file(tmp_path: Path) -> None:
    archive = Archive(tmp_path / "b")
    manifest = archive.manifest(added(archive, 1, token=b"secret"))
    archive.path(manifest.files[0]).write_bytes(b"sec")
    assert not archive.has(manifest.files[0])
    added(archive, 2, token=b"secret")
    archive.copy(manifest.files[0], None, ignore)


def test_a_directory_with_something_in_it_is_not_restored_into(tmp_path: Path) -> None:
    archive = Archive(tmp_path / "b")
    manifest = archive.manifest(added(archive, 1, token=b"secret"))
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "precious").write_text("")
    with pytest.raises(RequestError, match="not an empty directory"):
        restore(archive, manifest, tmp_path / "d")


def test_a_link_and_a_mount_point_are_refused_before_anything_is_copied(tmp_path: Path) -> None:
    archive = Archive(tmp_path / "b")
    manifest = archive.manifest(added(archive, 1, token=b"secret"))
    (tmp_path / "d").mkdir()
    (tmp_path / "link").symlink_to("d")
    with pytest.raises(RequestError, match="link is a symbolic link") as link:
        restore(archive, manifest, tmp_path / "link")
    assert link.value.hint.endswith(f"--data {tmp_path / 'd'}")
    with pytest.raises(RequestError, match="is a mount point"):
        restore(archive, manifest, Path("/proc"))


def test_what_a_killed_restore_has_left_does_not_count(tmp_path: Path) -> None:
    archive = Archive(tmp_path / "b")
    manifest = archive.manifest(added(archive, 1, token=b"secret"))
    (tmp_path / ".d.restoring").mkdir()
    (tmp_path / ".d.restoring" / "token").write_text("half")
    restore(archive, manifest, tmp_path / "d")
    assert [(one.name, one.read_bytes()) for one in (tmp_path / "d").iterdir()] == [("token", b"secret")]


def test_secrets_are_readable_by_their_owner_alone(tmp_path: Path) -> None:
    archive = Archive(tmp_path / "b")
    manifest = archive.manifest(added(archive, 1, token=b"secret"))
    restore(archive, manifest, tmp_path / "d")
    files = [tmp_path / "d" / "token", archive.path(manifest.files[0]), tmp_path / "b" / archive.names()[0]]
    assert {one.stat().st_mode & 0o777 for one in files} == {0o600}
    assert {one.stat().st_mode & 0o777 for one in (tmp_path / "b", tmp_path / "d")} == {0o700}


def test_two_backups_are_not_written_at_once(tmp_path: Path) -> None:
    with Archive(tmp_path / "b").writing(), pytest.raises(StoreInUse), Archive(tmp_path / "b").writing():
        pass


def test_a_directory_with_other_files_is_not_used(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("")
    with pytest.raises(RequestError, match=r"thesis\.txt"), Archive(tmp_path).writing():
        pass


@pytest.mark.parametrize(("found", "hint"), [(FORMAT + 1, "Use that version"), (None, "Take a new backup")])
def test_a_backup_of_another_format_is_refused(found: int | None, hint: str) -> None:
    text = b"{}" if found is None else b'{"format": %d, "unknown": []}' % found
    with pytest.raises(UnreadableFormat) as refused:
        decode_manifest(text, "backup-x.json")
    assert refused.value.hint.startswith(hint)


@pytest.mark.parametrize("path", ["/etc/passwd", "../elsewhere", "a/../../b", ""])
def test_a_manifest_that_names_files_elsewhere_is_refused(path: str) -> None:
    bad = manifest_of(StoredFile(path=path, size=0, sha256="0" * 64))
    with pytest.raises(Damaged, match="names the file"):
        decode_manifest(encode_manifest(bad), "backup-x.json")
