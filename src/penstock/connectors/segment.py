"""`segment`: raw events of a segment of the store, over the segment protocol.

out    pipelines read the segment `segment:NAME` of this worker
in     values are appended to a segment, of this worker or of another one
"""

import asyncio
import re
import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, NamedTuple, Self
from uuid import UUID, uuid4, uuid5

from pydantic import Field, field_validator, model_validator

from penstock.client.segments import AsyncAppender, AsyncSegmentClient
from penstock.client.segments.appenders import batches
from penstock.connectors.api import (
    About,
    Capabilities,
    Connector,
    Host,
    Lost,
    Options,
    Outgoing,
    SegmentPort,
    ShownBy,
    StreamGone,
)
from penstock.connectors.secrets import PlainOnly, Secret
from penstock.connectors.url_forms import UrlForm, segment
from penstock.connectors.values import Size, SomeSeconds
from penstock.core.address import Address
from penstock.core.errors import NoRoom, PenstockError, Unavailable
from penstock.core.types import Guarantee
from penstock.protocol.segment import HEADER_SIZE
from penstock.protocol.stored.names import Source

_WRITERS = UUID("0c6a2f6e-3a43-4b2c-8f0e-6a5d0b6f7f11")
"""The namespace of our writers' names."""

_BLOCK_BYTES = 8 << 20
"""The size of one append, with its headers: a worker accepts slightly more at once."""

_VALUE_BYTES_MAX = _BLOCK_BYTES - HEADER_SIZE

_WRITERS_MAX = 256
"""Open appenders, one for each stream of a pipeline. The segment remembers many more writers."""

_NAME = re.compile(r"(?P<run>.+):(?P<epoch>\d+)/(?P<number>\d+)")
"""The name of a delivery: `pipeline:incarnation:epoch/number`."""


class SegmentOptions(Options):
    """An epoch that is delivered again after a crash is recognised, and not appended twice."""

    segment: Annotated[str, Field(min_length=1)]
    """The name of the segment."""
    worker: str | None = None
    """`HOST:PORT` of another worker's segment port. Then there is no port `out`."""
    token: Annotated[str, Field(repr=False)] = ""
    """For another worker: a token that it knows, from a file: `${file:/run/secrets/token}`."""
    create: bool = True
    """Create the segment if it does not exist. For `in`."""
    quota: Size | None = None
    """The largest size of the segment. For `in`."""
    timeout: SomeSeconds = 30.0
    """How long to wait for a reply of the worker. For `in`."""
    tls: bool = False
    """Connect with TLS. For `in`."""
    ca: Path | None = None
    """Authorities to trust, instead of the system's."""

    @field_validator("segment", mode="before")
    @classmethod
    def _refuse_references(cls, given: Any) -> Any:
        if isinstance(given, Secret):
            raise PlainOnly("a segment's name cannot be a reference: it is public. Write the name itself")
        return given

    @model_validator(mode="after")
    def _check(self) -> Self:
        try:
            Source.parse(f"segment:{self.segment}")
            if self.worker is not None:
                Address.parse(self.worker)
        except PenstockError as error:
            raise ValueError(f"{error}. {error.hint}") from None
        if self.ca is not None and not self.tls:
            raise ValueError("ca is for TLS: add tls: true, or leave it out")
        return self


class Segment(Connector[SegmentOptions]):
    """At least once. What is delivered again, because a crash happened between the append and its record, is recognised
    by its writer's number in the segment, and not stored twice.
    """

    about = About(
        "segment",
        "A segment of this worker, or of another one: pipelines read it, or append to it.",
        SegmentOptions,
        Capabilities(
            source=Guarantee.EXACTLY_ONCE,
            sink=Guarantee.AT_LEAST_ONCE,
            resumes=True,
            own_event_times=True,
            interceptors=frozenset({"out"}),
        ),
        example={"segment": "numbers"},
        url=UrlForm(written="segment:NAME", place=segment, fields=("segment",)),
        shown_by=ShownBy(
            source="tests/spark/test_source_queries.py::test_raw_segments_and_several_sources_can_be_read_together",
            sink="tests/application/test_sink_kills.py::test_every_value_reaches_programs_functions_and_segments",
        ),
    )

    def __init__(self, options: SegmentOptions) -> None:
        super().__init__(options)
        self._client: AsyncSegmentClient | None = None
        self._writers: dict[str, _Writer] = {}

    @classmethod
    def capabilities(cls, options: SegmentOptions) -> Capabilities:
        known = cls.about.capabilities
        return known if options.worker is None else Capabilities(sink=known.sink, interceptors=known.interceptors)

    @classmethod
    def source_name(cls, options: SegmentOptions, name: str) -> str | None:  # noqa: ARG003
        return f"segment:{options.segment}" if options.worker is None else None

    async def run(self, host: Host) -> None:
        try:
            if host.has_in:
                await self._prepare(self._connected(host))
            host.connected()
            await asyncio.Event().wait()  # accepted events leave after a drain: until it is cancelled
        except (Unavailable, NoRoom) as error:
            raise Lost(str(error), error.hint) from error
        finally:
            await self._close()

    async def deliver(self, outgoing: Outgoing, host: Host) -> None:
        too_large = [place for place, value in enumerate(outgoing.values) if len(value) > _VALUE_BYTES_MAX]
        values = [value for value in outgoing.values if len(value) <= _VALUE_BYTES_MAX]
        try:
            writer = await self._writer(outgoing, self._connected(host), host)
            await writer.write(_place(outgoing.name)[1], values)
        except PenstockError as error:
            await self._forget()  # the next attempt starts with what the segment knows
            raise Lost(f"segment {self.options.segment!r}: {error}", error.hint) from error
        if too_large:
            raise StreamGone(
                f"over the {_VALUE_BYTES_MAX} bytes that fit into one event of a segment", places=too_large
            )

    async def _close(self) -> None:
        await self._forget()
        if self._client is not None:
            await self._client.close()
            self._client = None

    async def _forget(self) -> None:
        for writer in self._writers.values():
            await writer.appender.close()
        self._writers.clear()

    def _connected(self, host: Host) -> AsyncSegmentClient:
        if self._client is None:
            port, timeout = host.segment_port, self.options.timeout
            if self.options.worker is not None:  # it must not see our own token
                port = SegmentPort(self.options.worker, self.options.token)
            tls = ssl.create_default_context(cafile=self.options.ca) if self.options.tls else None
            self._client = AsyncSegmentClient(
                port.address, ssl=tls, token=port.token, timeout_seconds=timeout, retry_seconds=timeout
            )
        return self._client

    async def _prepare(self, client: AsyncSegmentClient) -> None:
        name, quota = self.options.segment, self.options.quota
        if self.options.create:
            await client.create(name, quota_bytes=quota, exist_ok=True)
        else:
            await client.info(name)

    async def _writer(self, outgoing: Outgoing, client: AsyncSegmentClient, host: Host) -> "_Writer":
        """The writer of the stream, in this run of the pipeline. Raises PenstockError."""
        run, stream = _place(outgoing.name)[0], outgoing.stream
        key = f"{host.name}\n{run}\n{stream}"
        writer = self._writers.pop(key, None)
        if writer is None:
            if len(self._writers) >= _WRITERS_MAX:
                await self._writers.pop(next(iter(self._writers))).appender.close()
            writer_id = uuid5(_WRITERS, key) if run else uuid4()
            writer = _Writer(await client.appender(self.options.segment, writer_id))
        self._writers[key] = writer  # at the end: the most recently used
        return writer


class _Place(NamedTuple):
    """The position of a delivery in the order of deliveries."""

    epoch: int
    number: int

    def of_block(self, block: int) -> int:
        """The number of the writer's event: 2^31 epochs of 2^24 deliveries of 2^8 blocks. Only the last event in a
        block has a number, so a block is stored completely or not at all.
        """
        return self.epoch << 32 | self.number << 8 | block


def _place(name: str) -> tuple[str, _Place | None]:
    """The incarnation of the pipeline, and the position in it; None if the name does not contain them."""
    found = _NAME.fullmatch(name)
    if found is None:
        return "", None
    place = _Place(int(found["epoch"]), int(found["number"]))
    fits = place.epoch < 1 << 31 and place.number < 1 << 24
    return (found["run"], place) if fits else ("", None)


@dataclass(frozen=True, slots=True)
class _Writer:
    """For one stream in one run of a pipeline: its events arrive in order, so anything with an earlier place than the
    last one is stored already.
    """

    appender: AsyncAppender

    async def write(self, place: _Place | None, values: Sequence[bytes]) -> None:
        """Returns when they are durable."""
        for number, (framed, count) in enumerate(batches(values, _BLOCK_BYTES)):
            await self._append(framed, count, None if place is None else place.of_block(number))
        await self.appender.flush()

    async def _append(self, framed: bytes, count: int, number: int | None) -> None:
        last = self.appender.taken
        if number is None or last is None or number > last:
            await self.appender.append_block(framed, count, number=number)
