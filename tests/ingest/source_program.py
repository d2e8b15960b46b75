"""Run as a process: a source with numbered messages on several streams, with only a socket and the codec.

python -m tests.ingest.source_program PORT INSTANCE LOG STREAMS STOP SEED

It reconnects whenever the worker is gone, and resumes where NOTIFY_ACK says. It logs every point of reference that it
receives, and syncs the log, before it does anything else; it fails if it must resume below one of these. When the file
STOP appears, it ends its streams and waits for their last acknowledgement.
"""

import os
import random
import select
import socket
import sys
import time
from pathlib import Path

from penstock.protocol.connector import (
    NOTHING_YET,
    Ack,
    Decoder,
    EndOfStream,
    Hello,
    Message,
    Notify,
    NotifyAck,
    Ok,
    Use,
    announce_window,
    encode,
    stream_id_of,
)

RECONNECT_SECONDS = 0.02
BURST_MAX = 10
PAUSE_SECONDS = 0.01


def stream_ids(instance: str, count: int) -> list[int]:
    return [stream_id_of(f"{instance} {number}") for number in range(count)]


def payload(stream_id: int, message_id: int) -> bytes:
    """Of various sizes, and different for every message."""
    return b"%d of %d" % (message_id, stream_id) + b"." * (message_id * 31 % 200)


class Lost(Exception):
    """Something that was acknowledged is no longer stored."""


class Log:
    """Points of reference that were acknowledged, on disk: `ack STREAM ID`, and `end STREAM ID` for the last one."""

    def __init__(self, path: Path) -> None:
        self.acked: dict[int, int] = {}
        self.ended: dict[int, int] = {}
        self._file = path.open("a+b", buffering=0)
        self._file.seek(0)
        whole = self._file.read().rpartition(b"\n")[0]
        self._file.truncate(len(whole) + 1 if whole else 0)
        for line in whole.splitlines():
            kind, stream_id, last_id = line.split()
            (self.acked if kind == b"ack" else self.ended)[int(stream_id)] = int(last_id)

    def close(self) -> None:
        self._file.close()

    def write(self, acked: dict[int, int], ended: dict[int, int]) -> None:
        lines = [b"ack %d %d\n" % pair for pair in acked.items()] + [b"end %d %d\n" % pair for pair in ended.items()]
        if lines:
            self._file.write(b"".join(lines))
            os.fsync(self._file.fileno())
        self.acked |= acked
        self.ended |= ended


class Acked:
    """The last acknowledged id of each stream, from the log of a program that may still be running."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._end = 0
        self._last: dict[int, int] = {}

    def read(self) -> dict[int, int]:
        if self._path.exists():
            with self._path.open("rb") as file:
                file.seek(self._end)
                whole = file.read().rpartition(b"\n")[0]
            self._end += len(whole) + 1 if whole else 0
            for line in whole.splitlines():
                _, stream_id, last_id = line.split()
                self._last[int(stream_id)] = int(last_id)
        return dict(self._last)


class Source:
    """One connection after the other."""

    def __init__(self, port: int, instance: str, log: Log, count: int, stop: Path, seed: int) -> None:
        self._port = port
        self._instance = instance
        self._log = log
        self._streams = stream_ids(instance, count)
        self._stop = stop
        self._random = random.Random(seed)

    def run(self) -> None:
        while len(self._log.ended) < len(self._streams):
            try:
                self._connect()
                self._converse()
            except (OSError, EOFError):
                time.sleep(RECONNECT_SECONDS)

    def _connect(self) -> None:
        self._socket = socket.create_connection(("127.0.0.1", self._port), timeout=5)
        self._decoder = Decoder(Use.SOURCE)
        self._credits = 0
        self._sent: dict[int, int] = {}
        self._resumed: dict[int, int] = {}
        self._ending: dict[int, int] = {}
        self._refused: set[int] = set()
        self._socket.sendall(encode(Hello("0.0.1", b"", announce_window("source_program"), self._instance)))

    def _converse(self) -> None:
        with self._socket:
            while len(self._log.ended) < len(self._streams):
                waits = PAUSE_SECONDS if self._credits else 0.1
                if select.select([self._socket], [], [], waits)[0]:
                    self._receive()
                self._send()

    def _receive(self) -> None:
        data = self._socket.recv(65536)
        if not data:
            raise EOFError
        for frame in self._decoder.feed(data):
            match frame:
                case Ok():
                    self._credits = frame.credits
                    self._notify(self._open_yet())
                case NotifyAck():
                    self._opened(frame)
                case Ack():
                    self._credits += frame.credits
                    self._acked(dict(frame.acked))
                    refused, self._refused = self._refused, set()
                    self._notify(refused)
                case _:
                    raise Lost(f"unexpected: {frame}")

    def _open_yet(self) -> set[int]:
        return {stream_id for stream_id in self._streams if stream_id not in self._log.ended}

    def _notify(self, streams: set[int]) -> None:
        for stream_id in streams:
            self._credits -= 1
            self._socket.sendall(encode(Notify(stream_id, f"stream {stream_id}")))

    def _opened(self, answer: NotifyAck) -> None:
        stream_id = answer.stream_id
        if not answer.success:
            self._refused.add(stream_id)
            return
        point = 0 if answer.point_of_reference == NOTHING_YET else answer.point_of_reference
        if point < self._log.acked.get(stream_id, 0):
            raise Lost(f"stream {stream_id}: {self._log.acked[stream_id]} was acknowledged, now it resumes at {point}")
        self._sent[stream_id] = self._resumed[stream_id] = point

    def _acked(self, acked: dict[int, int]) -> None:
        for stream_id, last_id in acked.items():
            if not self._resumed[stream_id] <= last_id <= self._sent[stream_id]:
                raise Lost(f"stream {stream_id}: {last_id} is acknowledged, {self._sent[stream_id]} was sent")
        ended = {s: last_id for s, last_id in acked.items() if self._ending.get(s) == last_id}
        self._log.write(acked, ended)

    def _send(self) -> None:
        if self._stop.exists():
            for stream_id in self._sent.keys() - self._ending.keys():
                if self._sent[stream_id]:
                    self._ending[stream_id] = self._sent[stream_id]
                    self._socket.sendall(encode(EndOfStream(stream_id)))
        streams = [stream_id for stream_id in self._sent if stream_id not in self._ending]
        self._random.shuffle(streams)
        self._socket.sendall(b"".join(map(self._burst, streams)))

    def _burst(self, stream_id: int) -> bytes:
        count = max(0, min(self._credits, self._random.randrange(BURST_MAX)))
        first = self._sent[stream_id] + 1
        self._credits -= count
        self._sent[stream_id] += count
        return b"".join(
            encode(Message(stream_id, number, number, b"", payload(stream_id, number)))
            for number in range(first, first + count)
        )


def main(port: str, instance: str, log: str, streams: str, stop: str, seed: str) -> None:
    Source(int(port), instance, Log(Path(log)), int(streams), Path(stop), int(seed)).run()


if __name__ == "__main__":
    main(*sys.argv[1:])
