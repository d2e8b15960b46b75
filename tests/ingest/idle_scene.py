"""A program server whose idle clocks are advanced by the test, and the marks that it has stored."""

from collections.abc import Iterable
from dataclasses import dataclass

from penstock.ingest.settings import SourceSettings
from penstock.ingest.time_marks import IdleMarks
from penstock.protocol.connector import Message
from penstock.protocol.stored.head import Mark, MarkKind
from tests.ingest.conftest import RunningServer, Serve
from tests.support.heads import decode_head

STEP_SECONDS = 0.5
TIMEOUT = 10.0
SETTINGS = SourceSettings(segments=2, idle_timeout_seconds=TIMEOUT)


@dataclass
class IdleScene:
    """The program server's own ticks see no time pass; only the test advances the clock."""

    running: RunningServer
    now: float = 0.0

    def __post_init__(self) -> None:
        self.running.sources.idle_marks = IdleMarks(lambda: self.now)

    def pass_time(self, seconds: float, step_seconds: float = STEP_SECONDS) -> None:
        for _ in range(round(seconds / step_seconds)):
            self.now += step_seconds
            self.running.sources.idle_marks.tick(self.running.sources)

    async def records(self) -> list[tuple[list[Mark], dict[int, int]]]:
        """For each durable record: its marks, and the last message id of each stream in it."""
        await self.running.sources.durability.caught_up()
        found = []
        for name in self.running.sources.log("source").segments:
            info = self.running.store.info(name)
            for _, data in self.running.store.heads(name, info.start, info.length):
                head = decode_head(data)
                if head is not None:
                    found.append((head.marks, head.last))
        return found

    async def marked(self, *kinds: MarkKind) -> list[int]:
        """The stream of each mark of this kind, with repetitions."""
        return sorted(m.stream_id for marks, _ in await self.records() for m in marks if m.kind in kinds)

    async def idle(self) -> list[int]:
        return await self.marked(MarkKind.IDLE)


async def idle_scene(serve: Serve, settings: SourceSettings = SETTINGS, **more: object) -> IdleScene:
    return IdleScene(await serve(source=settings, **more))


def messages(stream_ids: Iterable[int], message_id: int) -> list[Message]:
    return [Message(stream_id, message_id, 1000, b"", b"payload") for stream_id in stream_ids]
