"""How messages lie in the files of a file sink: whole blocks at a time, by compiled kernels."""

from enum import Enum

from penstock.connectors.file.kernel import frames, lines
from penstock.core.types import Buffer
from penstock.protocol.stored.bulk import Bytes


class FileFormat(Enum):
    """Keys and event times are not in any of them."""

    LINES = "lines"
    """Payload and newline. A newline inside a payload is not escaped: use `frames` for such."""
    RAW = "raw"
    """The payloads, one right behind the other."""
    FRAMES = "frames"
    """A u32, big-endian, with the length of the payload, and the payload."""

    @property
    def suffix(self) -> str:
        """How the names of such files end."""
        return _SUFFIXES[self]


_SUFFIXES = {FileFormat.LINES: ".txt", FileFormat.RAW: ".bin", FileFormat.FRAMES: ".frames"}


def encode(values: Bytes, form: FileFormat) -> Buffer:
    """The bytes of these payloads, in order. At most four bytes for each are added; RAW copies nothing."""
    if form is FileFormat.RAW:
        return memoryview(values.data)[int(values.offsets[0]) : int(values.offsets[len(values)])]
    return lines(values) if form is FileFormat.LINES else frames(values)
