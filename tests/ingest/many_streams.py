"""Very many streams on many sessions of one source: that it works, and what it costs.

python -m tests.ingest.many_streams [--streams 100000] [--sessions 100] [--rounds 10]
"""

import argparse
import asyncio
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock.protocol.connector import NOTHING_YET, Ack, Hello, Message, Notify, NotifyAck, Ok, announce_window, encode
from tests.ingest.conftest import Peer
from tests.support import http
from tests.support.worker_process import WorkerProcess

MIB = 1 << 20
PAYLOAD = bytes(100)
ANSWER_SECONDS = 120


@dataclass
class Figures:
    """Times in seconds, sizes in bytes."""

    streams: int
    sessions: int
    rounds: int
    resident_empty: int = 0
    resident_open: int = 0
    resident_after: int = 0
    opened_in: float = 0
    sent_in: float = 0
    killed_and_recovered_in: float = 0
    opened_again_in: float = 0

    def __str__(self) -> str:
        messages = self.streams * self.rounds
        return (
            f"{self.streams} streams on {self.sessions} sessions: opened in {self.opened_in:.2f} s, "
            f"{messages} messages acknowledged in {self.sent_in:.2f} s\n"
            f"killed and recovered in {self.killed_and_recovered_in:.2f} s, all opened again where they were in "
            f"{self.opened_again_in:.2f} s\n"
            f"resident: {self.resident_empty / MIB:.0f} MiB empty, {self.resident_open / MIB:.0f} MiB open, "
            f"{self.resident_after / MIB:.0f} MiB after the messages, that is "
            f"{(self.resident_after - self.resident_empty) / self.streams:.0f} bytes for each stream"
        )


def resident_bytes(worker: WorkerProcess) -> int:
    status = Path(f"/proc/{status_of(worker)['pid']}/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0]) * 1024


def status_of(worker: WorkerProcess) -> dict[str, Any]:
    status: dict[str, Any] = http.get(worker.http_port, "/status")
    return status


class ManyStreams:
    """One session with its share of the streams."""

    def __init__(self, streams: range) -> None:
        self._streams = streams
        self._credits = 0

    async def connect(self, port: int) -> None:
        self._peer = Peer(*await asyncio.open_connection("127.0.0.1", port))
        self._peer.send(Hello("0.0.1", b"", announce_window("many_streams"), "source"))
        ok = await self._peer.frame(ANSWER_SECONDS)
        assert isinstance(ok, Ok)
        self._credits = ok.credits

    async def open(self, expected: int) -> None:
        self._peer.send(b"".join(encode(Notify(stream_id, f"stream {stream_id}")) for stream_id in self._streams))
        self._credits -= len(self._streams)
        waiting = set(self._streams)
        while waiting:
            frame = await self._peer.frame(ANSWER_SECONDS)
            if isinstance(frame, Ack):
                self._credits += frame.credits
                continue
            assert isinstance(frame, NotifyAck), frame
            assert frame.point_of_reference == expected
            waiting.remove(frame.stream_id)

    async def send(self, rounds: int) -> None:
        """Send one message per stream in each round. Returns when the last one of each stream is acknowledged."""
        waiting = set(self._streams)
        for message_id in range(rounds):
            for stream_id in self._streams:
                while self._credits <= 0:
                    await self._hear(waiting, rounds - 1)
                self._credits -= 1
                self._peer.send(Message(stream_id, message_id, 0, b"", PAYLOAD))
            await self._peer.writer.drain()
        while waiting:
            await self._hear(waiting, rounds - 1)

    async def _hear(self, waiting: set[int], last_id: int) -> None:
        frame = await self._peer.frame(ANSWER_SECONDS)
        assert isinstance(frame, Ack), frame
        self._credits += frame.credits
        waiting -= {acked.stream_id for acked in frame.acked if acked.point_of_reference == last_id}

    async def close(self) -> None:
        with suppress(OSError):
            await self._peer.close()


async def measure(worker: WorkerProcess, figures: Figures) -> None:
    share = figures.streams // figures.sessions
    parts = [ManyStreams(range(number * share, (number + 1) * share)) for number in range(figures.sessions)]
    figures.resident_empty = resident_bytes(worker)
    figures.opened_in = await _open(worker, parts, NOTHING_YET)
    figures.resident_open = resident_bytes(worker)
    began = time.perf_counter()
    await asyncio.gather(*(part.send(figures.rounds) for part in parts))
    figures.sent_in = time.perf_counter() - began
    figures.resident_after = resident_bytes(worker)
    assert status_of(worker)["source_totals"]["active_streams"] == figures.streams
    began = time.perf_counter()
    worker.kill()
    await asyncio.gather(*(part.close() for part in parts))
    worker.start()
    figures.killed_and_recovered_in = time.perf_counter() - began
    figures.opened_again_in = await _open(worker, parts, figures.rounds - 1)
    await asyncio.gather(*(part.close() for part in parts))


async def _open(worker: WorkerProcess, parts: list[ManyStreams], expected: int) -> float:
    began = time.perf_counter()
    await asyncio.gather(*(part.connect(worker.connector_port) for part in parts))
    await asyncio.gather(*(part.open(expected) for part in parts))
    return time.perf_counter() - began


def run(data: Path, streams: int, sessions: int, rounds: int) -> Figures:
    figures = Figures(streams, sessions, rounds)
    with WorkerProcess(data) as worker:
        asyncio.run(measure(worker, figures))
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, default=100_000)
    parser.add_argument("--sessions", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=10)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="penstock-many-streams-") as directory:
        print(run(Path(directory) / "data", options.streams, options.sessions, options.rounds))


if __name__ == "__main__":
    main()
