"""The options of `file`."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from penstock.connectors.api import Options
from penstock.connectors.values import Size, SomeSeconds, check_modes

_OF_MODES = {
    "chunk": ("read", "tail"),
    "parallel": ("read",),
    "poll": ("tail",),
    "linger": ("tail",),
    "lines": ("tail",),
    "compression": ("read", "write"),
    "format": ("write", "append"),
    "rotate_bytes": ("write",),
    "rotate": ("write",),
}
"""In which modes an option means something."""


class FileOptions(Options):
    """Relative paths start in the directory where the worker was started. `interceptors: in`, such as `split`, cut what
    is read into events.

    A file that is tailed is identified by its inode and its first line. Reading continues in a renamed file where it
    was, so nothing is lost when logrotate renames a file and creates another. A truncated or recreated file is read
    from the beginning. What had not been read before is then read from a copy, if there is one in the same directory
    whose name begins with the file's name and `.` or `-`, as logrotate's `copytruncate` makes it; the pattern must not
    match such copies. What was overwritten before it was read or copied is lost. A file that was truncated and has the
    same first line and the same length at the next poll is not recognised as truncated.

    If files were rotated while the worker was down, the rest of each is looked for when it starts, in the directories
    of the pattern: the same inode under another name, or one file that begins with the same first line, also compressed
    (`.gz`, `.zst`, `.xz`, `.lz4`, `.bz2`). If there is none, or several begin like it, an error is logged and counted
    as `vanished_files`, and the file's stream ends. A file that was created and rotated while the worker was down is
    not read unless the pattern matches it. Compressed files are never tailed: one that the pattern matches is logged
    and counted as `compressed_files`.

    In mode `write` the directory contains files `part-NUMBER` and the connector's log. Uncommitted data may be at the
    end of the last part: readers use `penstock.connectors.file.read_committed_parts`.
    """

    mode: Literal["read", "tail", "write", "append"]
    """`read` and `tail` have a port `out`; `write` and `append` have a port `in`. `write` is transactional; `append`
    is at-least-once."""
    path: Annotated[str, Field(min_length=1)]
    """Modes `read` and `tail`: a file, or a pattern with `*`, `?`, `[…]` and `**`. Mode `write`: a directory that
    belongs to this connector. Mode `append`: a file."""
    chunk: Annotated[Size, Field(le=1 << 20)] = 256 << 10
    """How much is read at a time. Modes `read` and `tail`."""
    parallel: Annotated[int, Field(ge=1, le=64)] = 4
    """How many files are read at the same time. Mode `read`."""
    poll: SomeSeconds = 0.5
    """How often to look for new data and new files. Mode `tail`."""
    linger: SomeSeconds = 5.0
    """How long a renamed or removed file must be silent before it counts as finished. Mode `tail`."""
    lines: bool = True
    """Wait until a line is complete. Mode `tail`."""
    compression: Literal["none", "auto", "gzip", "zstd", "xz", "lz4", "bzip2"] = "none"
    """Mode `read`: how files are compressed; `auto` decides by their names (`.gz`, `.zst`, `.xz`, `.lz4`, `.bz2`), and
    reads all others as they are. Mode `write`: how parts are compressed, `gzip`, `zstd` or `xz`; each epoch is a member
    of its own, so what is committed can always be decompressed. zstd and lz4 need
    `pip install 'penstock-streams[compression]'`."""
    format: Literal["lines", "raw", "frames"] = "lines"
    """`lines`: a newline after each value. `raw`: nothing between values. `frames`: a big-endian u32 with the length
    before each value. Modes `write` and `append`. In mode `append`, a file of frames is read once when the connector
    starts: the part of a frame that a crash has left at its end is removed."""
    rotate_bytes: Size | None = None
    """Start a new part when the last one has at least this size. Mode `write`."""
    rotate: SomeSeconds | None = None
    """Start a new part in each period of this length, counted from 1970: `1h` starts one at every full hour (UTC) in
    which there is data. Mode `write`."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.mode == "write" and self.compression in ("auto", "lz4", "bzip2"):
            raise ValueError("the compression of parts is gzip, zstd, xz or none")
        check_modes(self, self.mode, _OF_MODES)
        return self
