"""What the journal does to its files, step by step: write a group of records, or turn to the next chapter."""

from dataclasses import dataclass
from typing import NamedTuple

from penstock.core.types import Buffer, Position
from penstock.store.chapters import chapter_name
from penstock.store.files import File, Files
from penstock.store.record import TRAILER_BYTES, trailer
from penstock.store.spares import OUT_OF_SPACE, Spare


@dataclass(slots=True)
class WriteStep:
    """A group of records for one chapter: one write, one fsync. It grows until it is committed."""

    file: File
    offset: int
    buffers: list[Buffer]
    end: Position

    def perform(self, _files: Files) -> bool:
        """False when there is no room: perform it again later. Raises OSError when it cannot be trusted any more."""
        if not _write(self.file, self.offset, self.buffers):
            return False
        self.file.sync()
        return True


class TurnStep(NamedTuple):
    """The end of one chapter and the beginning of the next."""

    old: File
    old_size: int
    index_position: Position
    spare: Spare
    base: Position
    first: bytes
    end: Position

    def perform(self, files: Files) -> bool:
        """As a WriteStep. The old chapter is whole and durable before the new one has a name."""
        if not _write(self.old, self.old_size, [trailer(self.index_position)]):
            return False
        if not _write(self.spare.file, 0, [self.first]):
            return False
        self.old.truncate(self.old_size + TRAILER_BYTES)
        self.old.sync()
        self.spare.file.sync()
        files.rename(self.spare.name, chapter_name(self.base))
        files.sync()
        return True


def _write(file: File, offset: int, buffers: list[Buffer]) -> bool:
    try:
        file.write(offset, buffers)
    except OSError as error:
        if error.errno not in OUT_OF_SPACE:
            raise
        return False
    return True
