"""The sink SDK: `Sink` blocks, `AsyncSink` is for asyncio. A worker connects and delivers a pipeline's output; they
implement the connector protocol, two-phase commit with its log, and recovery.

    sink = Sink("127.0.0.1:7200", DataFile("out.txt"), state="out.state", encode=lines)
    sink.run()

Both are thin I/O shells around the same parts, which do none: `session` is one connection, `transactions` what follows
from votes and decisions, `LogState` the state of the log. They return the calls to perform as `Effect`s.
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
