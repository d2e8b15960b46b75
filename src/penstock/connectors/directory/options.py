"""The options of `directory`."""

from pathlib import Path
from typing import Annotated, Literal, Self
from urllib.parse import unquote, urlsplit

from pydantic import Field, model_validator

from penstock.connectors.api import Options
from penstock.connectors.values import Seconds, Size, SomeSeconds

_IGNORED = (".*", "*.tmp", "*.part", "*.swp", "*~")


class DirectoryOptions(Options):
    """Each file is a stream: it is read once, from its beginning to its end, and after a restart from where it stopped.
    Its name below `path` is in the metadata of its events (`path`). `interceptors: in`, such as `split`, cut it into
    events. When nothing is left to read, the connector looks for new files every `poll`.

    A file is identified by its name, its size and the time of its last change (in a bucket: by its ETag). One that
    changes after it was read, or while it is read, is not read again: it is logged as an error, and counted in
    `changed_files` of the status, because it is not known which of its events are new. `changed: again` reads it again
    from its beginning, as another stream.

    The record of what was read is part of the source, and as durable as its events. A file that was removed is
    forgotten after `forget_after`, so the record does not grow without bound; a file that comes back later is read
    again. A file that vanishes before it was read to its end is logged as an error, and counted in `vanished_files`.
    """

    path: Annotated[str, Field(min_length=1)]
    """A directory, or a prefix in a bucket: `s3://BUCKET/PREFIX`, `gs://…`, `az://…`. Buckets need
    `pip install 'penstock-streams[bucket]'`, and find credentials in the worker's environment."""
    pattern: Annotated[str, Field(min_length=1)] = "*"
    """Which files to read, by their names without folders: `*.csv`."""
    ignore: list[Annotated[str, Field(min_length=1)]] = Field(default_factory=lambda: [*_IGNORED])
    """Patterns of files that are never read: those that are still being written, or belong to editors."""
    recursive: bool = False
    """Also read the files in all folders below."""
    order: Literal["name", "time"] = "name"
    """The order in which existing files are read: by name, including folders, or by the time of their last change,
    oldest first. A file that arrives later comes after them."""
    parallel: Annotated[int, Field(ge=1, le=64)] = 1
    """How many files are read, and open, at the same time. With 1, a file is started when the one before has ended."""
    finished: Literal["stable", "marker", "renamed"] = "stable"
    """When a file is complete and may be read. `stable`: it has not changed for `stable_for`. `marker`: a file with the
    same name plus `marker` exists. `renamed`: at once, because writers use a name that `ignore` matches, and rename the
    file when it is complete. Objects in a bucket appear as a whole, and are always read at once, except with
    `marker`."""
    stable_for: Seconds = 2.0
    """How long a file must stay unchanged. With `finished: stable`."""
    marker: Annotated[str, Field(pattern=r"^[^/]+$")] = ".done"
    """With `finished: marker`: `data.csv` is read when `data.csv.done` exists. Markers are not read."""
    done: Literal["keep", "delete", "move"] = "keep"
    """What happens to a file, and its marker, when every pipeline has completed an epoch with its last event. `move`
    puts it into `move_to`; not for buckets."""
    move_to: Path | None = None
    """The directory for files that were read, on the same file system."""
    changed: Literal["refuse", "again"] = "refuse"
    """What to do with a file that has changed after it was read."""
    compression: Literal["auto", "none", "gzip", "zstd", "xz", "lz4", "bzip2"] = "auto"
    """How files are compressed. `auto` decides by their names (`.gz`, `.zst`, `.xz`, `.lz4`, `.bz2`), and reads all
    others as they are. zstd and lz4 need `pip install 'penstock-streams[compression]'`."""
    once: bool = False
    """Read the files that exist, then end the source: all its windows close."""
    poll: SomeSeconds = 1.0
    """How often to look for new files."""
    chunk: Annotated[Size, Field(le=8 << 20)] = 256 << 10
    """How much is read at a time. With a bucket, use a mebibyte or more: each chunk is a request."""
    forget_after: SomeSeconds = 86400.0
    """How long a file must be gone before it is forgotten. Make it longer than the file system could ever be unmounted
    while the worker runs."""

    @property
    def folder(self) -> Path | None:
        """The directory; None for a bucket. `file://` is a directory too."""
        parts = urlsplit(self.path) if "://" in self.path else None
        if parts is None:
            return Path(self.path)
        return Path(unquote(parts.path)) if parts.scheme == "file" else None

    @model_validator(mode="after")
    def _check(self) -> Self:
        if (self.done == "move") != (self.move_to is not None):
            raise ValueError("done: move and move_to belong together")
        if self.done == "move" and self.folder is None:
            raise ValueError("in a bucket, done is keep or delete: objects cannot be moved")
        inside = self.move_to is not None and self.folder is not None and self.recursive
        if inside and Path(self.move_to or "").absolute().is_relative_to(Path(self.folder or "").absolute()):
            raise ValueError("move_to is inside path, and recursive would read it: choose a directory outside path")
        return self
