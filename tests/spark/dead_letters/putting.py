"""Dead letters of a pipeline without Spark: does what its tasks and its driver would do."""

from collections.abc import Iterable
from typing import Any

from penstock.client.coordinator import CoordinatorClient, InputOffset, InputSpec, Staged
from penstock.client.segments import SegmentClient
from tests.protocol.stored.events import stored

PIPELINE, RAW = "orders", "raw"
PORTS = ("out", "err", "late")


def letter(number: int, value: bytes | None = None, **more: Any) -> bytes:
    """As the sink stores it, without its header."""
    metadata = {"source": f"segment:{RAW}", "reason": f"reason {number}", "segment": RAW, "offset": number, **more}
    return stored(0, number, number * 1_000_000, b"", b"value %d" % number if value is None else value, metadata)[8:]


def original(number: int) -> bytes:
    payload = b"value %d" % number
    return stored(0, number, number * 1_000_000, b"", payload, {"source": f"segment:{RAW}"})[8:]


class Putting:
    """One generation of a pipeline that reads the segment `raw`."""

    def __init__(self, client: CoordinatorClient, segments: SegmentClient) -> None:
        self._client = client
        self._segments = segments
        segments.create(RAW, exist_ok=True)
        started = client.start(PIPELINE, {"in": InputSpec([f"segment:{RAW}"])}, PORTS)
        self.generation = started.generation
        self.at: InputOffset = client.initial(PIPELINE, self.generation, "in")

    def letters(self, letters: Iterable[bytes], port: str = "err") -> None:
        """An epoch whose output they are."""
        with self._segments.appender(RAW) as appender:
            appender.append(b"input")
        self.at = self._client.cut(PIPELINE, self.generation, "in", self.at, wait_ms=5000).offset
        assert self.at.epoch is not None
        staged = f"staging/{PIPELINE}/{self.generation}/{self.at.epoch}/0-0/{port}"
        with self._segments.appender(staged, create=True) as appender:
            for one in letters:
                appender.append(one)
        length = self._segments.info(staged).length
        self._client.merge(PIPELINE, self.at.epoch, [Staged(port, staged, length)], generation=self.generation)
