"""The source SDK: `Source` blocks, `AsyncSource` is for asyncio. A connector gives factories of iterators, and they do
the connector protocol: handshake, NOTIFY, credits, batches, acknowledgements, EOS, reconnects, RESTART.

    def lines(after: int | None) -> Iterator[Message]:
        with open("app.log", "rb") as file:
            file.seek(after or 0)
            while line := file.readline():
                yield Message(file.tell(), line.rstrip(b"\\n"))

    source = Source("127.0.0.1:7100", source="logs")
    source.stream("app.log", lines)
    source.run()

Both are thin shells of I/O around the same parts, which do none: `session` says what is sent in one connection,
`outflow` which stream is next, `reconnecting` where to connect again, and when.
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
