"""The segment server's limits, each with its reason."""

from dataclasses import dataclass
from ssl import SSLContext

from penstock.core.sizes import MIB


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    host: str = "127.0.0.1"
    port: int = 7101
    ssl: SSLContext | None = None

    connections_max: int = 250
    """Beyond it a new connection takes the place of an idle one, or is closed at once: each can make the worker buffer
    a block and a few replies."""

    address_connections_max: int | None = None
    """How many of them may come from one address; None: four fifths, so that one machine cannot take them all."""

    handshake_seconds: float = 10.0
    """From the connection to its first request, TLS included."""

    idle_seconds: float = 600.0
    """A connection without requests for so long is closed; clients connect again when they need it."""

    keep_alive_seconds: float = 20.0
    """After so long without a message in either direction, the server sends a KeepAlive, in the document's dialect:
    clients of the versioned one take every message for a reply."""

    dead_peer_seconds: int = 30
    """A peer that does not answer TCP probes for so long is gone."""

    appenders_max: int = 10_000
    """Writers set up on one connection, at about 200 bytes each."""

    block_bytes_max: int = 9 * MIB
    """Largest block of an append: bounds what one connection can make the worker buffer at once."""

    unacknowledged_bytes_max: int = 16 * MIB
    """Bytes received on one connection and not yet durable; beyond it the connection is not read."""

    unacknowledged_bytes_total_max: int = 128 * MIB
    """The same over all connections: bounds the journal's queue, whatever the number of clients."""

    replies_max: int = 4096
    """Replies owed to one connection; beyond it the connection is not read."""

    read_bytes_max: int = MIB
    """Data in one reply to a read; a message has less than 16 MiB."""

    short_circuit: bool = True
    """Whether readers learn where the journal's files are, which they then read themselves: on this machine, or in a
    bucket."""

    located_bytes_max: int = 64 * MIB
    """Data that one reply locates: a reader has the files open while it reads them, and a file that is removed in the
    meantime takes up space until then."""

    read_threads: int = 4
    """Threads that fetch from the disk, so that a slow read does not delay appends."""

    fetch_threads: int = 4
    """Threads that wait for an object store, so that one that does not answer does not delay reads of what is here."""

    tail_wait_seconds: float = 20.0
    """How long a read at the tail waits for data; clients expect an answer within 30 s."""

    stall_seconds: float = 60.0
    """A peer that stops in the middle of a message for so long is gone."""

    write_buffer_bytes_max: int = MIB
    """Replies that a peer has not fetched; beyond it the connection is not read."""

    drain_seconds: float = 10.0
    """How long a stop waits for what was received to become durable and acknowledged."""

    @property
    def address_max(self) -> int:
        return self.address_connections_max or max(self.connections_max * 4 // 5, 1)


# What the server has done since it started: plain numbers, read by /status and /metrics.


@dataclass(slots=True)
class Counters:
    connections: int = 0
    connections_refused: int = 0
    connections_evicted: int = 0
    protocol_errors: int = 0
    appends: int = 0
    appended_bytes: int = 0
    duplicates: int = 0
    refused: int = 0
    reads: int = 0
    read_bytes: int = 0
    locates: int = 0
    located_bytes: int = 0
    located_remote_bytes: int = 0
    locates_refused: int = 0
