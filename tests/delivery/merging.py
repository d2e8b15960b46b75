"""Epochs of a pipeline without Spark: does what its tasks and its driver would do."""

from collections.abc import Callable, Sequence

from penstock.client.coordinator import CoordinatorClient, InputOffset, InputSpec, Staged
from penstock.client.segments import SegmentClient
from penstock.protocol.stored.bulk import encode
from tests.delivery.fake_epoch import column


class Merging:
    """One generation of a pipeline that reads a segment of its own, or this source."""

    def __init__(
        self, client: CoordinatorClient, segments: SegmentClient, name: str, *ports: str, source: str | None = None
    ) -> None:
        self._client = client
        self._segments = segments
        self._name = name
        self._raw = f"raw-{name}" if source is None else None
        if self._raw is not None:
            segments.create(self._raw, exist_ok=True)
        inputs = {"in": InputSpec([source or f"segment:{self._raw}"])}
        self.generation = client.start(name, inputs, ports or ("out",)).generation
        self._at: InputOffset = client.initial(name, self.generation, "in")

    def ask_on(self) -> None:
        """Ask for the next epoch, whether there is input or not: that proves the last one."""
        self._client.cut(self._name, self.generation, "in", self._at)

    def epoch(self, values: Sequence[bytes], port: str = "out", mirror: Callable[[int], str] = lambda _: "") -> int:
        """Stage and merge an epoch. Returns its number. A source must have something to read. `mirror`: its checkpoint;
        returns the manifest's key.
        """
        if self._raw is not None:
            with self._segments.appender(self._raw) as appender:
                appender.append(b"input")
        self._at = self._client.cut(self._name, self.generation, "in", self._at, wait_ms=5000).offset
        epoch = self._at.epoch
        assert epoch is not None
        staged = f"staging/{self._name}/{self.generation}/{epoch}/0-0/{port}"
        encoded = encode(column(values))
        with self._segments.appender(staged, create=True) as appender:
            for start, end in zip(encoded.starts.tolist(), encoded.starts.tolist()[1:], strict=False):
                appender.append(bytes(encoded.data[start + 8 : end]))
        length = self._segments.info(staged).length
        parts, manifest = [Staged(port, staged, length)], mirror(epoch)
        self._client.merge(self._name, epoch, parts, generation=self.generation, manifest=manifest)
        return epoch
