"""The sink SDK: `Sink` blocks, `AsyncSink` is for asyncio. A worker connects and delivers a pipeline's output; they do
the connector protocol, the votes of two-phase commit and their log, and recovery.

    sink = Sink("127.0.0.1:7200", DataFile("out.txt"), state="out.state", encode=lines)
    sink.run()

Both are thin shells of I/O around the same parts, which do none: `session` is one connection, `transactions` what
follows from votes and decisions, `log_state` what the log says. What is to be done comes out of them as `effects`.
"""

from penstock.client.sink.log import CommittedPrefix, read_committed
from penstock.client.sink.participant import (
    AsyncParticipant,
    Data,
    DataFile,
    Participant,
    Transaction,
    lines,
    payloads,
)
from penstock.client.sink.sink import AsyncSink, Sink
from penstock.client.source.message import Message

__all__ = [
    "AsyncParticipant",
    "AsyncSink",
    "CommittedPrefix",
    "Data",
    "DataFile",
    "Message",
    "Participant",
    "Sink",
    "Transaction",
    "lines",
    "payloads",
    "read_committed",
]
