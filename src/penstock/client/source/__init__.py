"""The source SDK: `Source` blocks, `AsyncSource` is for asyncio. A connector provides factories of iterators; the
source speaks the connector protocol: handshake, NOTIFY, credits, batches, acknowledgements, EOS, reconnects, RESTART.

    def lines(after: int | None) -> Iterator[Message]:
        with open("app.log", "rb") as file:
            file.seek(after or 0)
            while line := file.readline():
                yield Message(file.tell(), line.rstrip(b"\\n"))

    source = Source("127.0.0.1:7100", source="logs")
    source.stream("app.log", lines)
    source.run()

Both are thin I/O shells around the same parts, which do none: `SourceSession` decides what is sent in one connection,
`Outflow` which stream is next, `Reconnecting` where and when to connect again.
"""

from penstock.client.source.failures import Refused, SourceFailed
from penstock.client.source.message import AsyncFactory, Factory, Message, SourceStream
from penstock.client.source.source import AsyncSource, Source

__all__ = [
    "AsyncFactory",
    "AsyncSource",
    "Factory",
    "Message",
    "Refused",
    "Source",
    "SourceFailed",
    "SourceStream",
]
