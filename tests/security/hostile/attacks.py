"""The attacks, each a number of clients that repeat one thing for as long as it is allowed.

They run in a process of their own, with the lowest priority, and pause between two attempts: on a machine with two
processors, one more process at full speed would take time from the worker and from the good client whatever the worker
does with its requests. So a loss of throughput is the worker's own time, spent on the attack. The attempts are counted,
because an attack that hardly gets to run shows nothing.

    python -m tests.security.hostile.attacks

reads a line of ports and tokens (JSON), then the name of an attack; it replies when the attack is in full swing. An
empty line ends the attack; the reply is how many attempts it made in a second.
"""

import asyncio
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import count
from random import Random

from penstock.protocol import connector
from penstock.protocol.segment import VERSIONED, CreateSegment, GetSegmentInfo, Hello
from tests.security.hostile.target import COOKIE, FORGED, MIB, Ports, Target, as_json

HELD_PAUSE_SECONDS = 1.0
FLOOD_PAUSE_SECONDS = 0.02
"""Before a client connects again: one that takes a place for as long as it can, and one that does as much as it can."""
READY_SECONDS_MAX = 5.0
"""Clients that wait for a place count as running, too."""
SPIN_SOURCE = "spin"


@dataclass(frozen=True, slots=True)
class Peer:
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def ended(self) -> None:
        """Reads until the worker disconnects."""
        while await self.reader.read(1 << 16):
            pass


class Attackers:
    """What an attack's clients have in common. `all_connected`: each of them was connected, once at least. `attempts`:
    connections, and further requests in one.
    """

    def __init__(self, ports: Ports, tokens: dict[str, str], clients: int) -> None:
        self.ports = ports
        self.tokens = tokens
        self.numbers = count()
        self.all_connected = asyncio.Event()
        self.attempts = 0
        self._unconnected = clients

    async def repeat(
        self, port: int, act: Callable[["Attackers", Peer], Awaitable[None]], pause_seconds: float
    ) -> None:
        """Connect, do it, and again. `act` returns after one time, or is cut short when the worker disconnects."""
        is_first = True
        while True:
            writer = None
            with suppress(OSError, EOFError):
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                self.attempts += 1
                self._connected(is_first=is_first)
                is_first = False
                await act(self, Peer(reader, writer))
            if writer is not None:
                writer.transport.abort()
            await asyncio.sleep(pause_seconds)

    def _connected(self, *, is_first: bool) -> None:
        self._unconnected -= is_first
        if not self._unconnected:
            self.all_connected.set()


def _request(method: str, path: str, token: str, length: int) -> bytes:
    kind = f"Content-Type: application/json\r\nContent-Length: {length}\r\n"
    authorization = f"Authorization: Bearer {token}\r\n" if token else ""
    return f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n{authorization}{kind}\r\n".encode()


async def unfinished_body(attackers: Attackers, peer: Peer) -> None:
    """As long as a merge may be, without its last byte: of a merge, or of a request that is never so long."""
    length = 32 * MIB
    if next(attackers.numbers) % 2:
        await peer.send(_request("POST", "/splits", attackers.tokens["reader"], length))
    else:
        await peer.send(_request("POST", "/pipelines/fuzz/merge", attackers.tokens["tenant"], length))
    for _ in range(length // MIB):
        await peer.send(b" " * (MIB - 1))
    await peer.ended()


async def half_sent_head(_: Attackers, peer: Peer) -> None:
    await peer.send(b"GET /status HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Long: ")
    await peer.ended()


def _pipelines(count: int) -> bytes:
    return json.dumps({"pipelines": {f"fuzz-{n}": ["fuzz"] for n in range(count)}}).encode()


_LARGE = _pipelines(110_000), _pipelines(40_000)
"""What a tenant may send, which announces pipelines: 2.4 MiB, which is too much, and 0.9 MiB, which is decoded."""


async def large_body(attackers: Attackers, peer: Peer) -> None:
    body = _LARGE[next(attackers.numbers) % len(_LARGE)]
    await peer.send(_request("POST", "/starting", attackers.tokens["tenant"], len(body)))
    await peer.send(body)
    await peer.reader.read(1)


async def idle(_: Attackers, peer: Peer) -> None:
    await peer.ended()


def _hello(cookie: str, source: str, program: str = "attacker") -> bytes:
    return connector.encode(connector.Hello(connector.SOURCE_VERSION, cookie.encode(), program, source))


async def hello(attackers: Attackers, peer: Peer) -> None:
    """With a wrong cookie, each for another source."""
    await peer.send(_hello("wrong", f"fuzz-{next(attackers.numbers)}"))
    await peer.ended()


async def notify_spin(attackers: Attackers, peer: Peer) -> None:
    """Programs that all want the same stream. One has it; each of the others asks again as soon as it has a credit."""
    decoder = connector.Decoder(connector.Use.SOURCE)
    notify = connector.encode(connector.Notify(1, "stream"))
    await peer.send(_hello(COOKIE, SPIN_SOURCE) + notify)
    while data := await peer.reader.read(1 << 16):
        for frame in decoder.feed(data):
            if isinstance(frame, connector.Ack):
                attackers.attempts += 1
                await peer.send(notify)


_LOGGED = "x" * 20_000 + f"\n{FORGED}" + "y" * 20_000


async def logged_text(attackers: Attackers, peer: Peer) -> None:
    """Texts that the worker logs: of an ERROR, and of a HELLO that it refuses."""
    if next(attackers.numbers) % 2:
        await peer.send(_hello("wrong", _LOGGED, _LOGGED))
    else:
        await peer.send(_hello(COOKIE, SPIN_SOURCE) + connector.encode(connector.Error(_LOGGED)))
    await peer.ended()


async def unauthenticated_http(attackers: Attackers, peer: Peer) -> None:
    """One after the other in one connection."""
    while True:
        attackers.attempts += 1
        await peer.send(_request("GET", "/status", "", 0))
        if not await peer.reader.read(1 << 16):
            return


async def unauthenticated_segment(attackers: Attackers, peer: Peer) -> None:
    await peer.send(VERSIONED.encode(Hello(17, 5)))
    while await peer.reader.read(1 << 16):
        attackers.attempts += 1
        await peer.send(VERSIONED.encode(CreateSegment("fuzz/a")) + VERSIONED.encode(GetSegmentInfo("fuzz/a", "wrong")))


async def fuzzed(attackers: Attackers, _: Peer) -> None:
    """As each of the fuzzer's principals but the owner: it may stop what it likes."""
    from tests.security.hostile.fuzz import PRINCIPALS, Fuzzer  # here: the other attacks need no worker's modules

    fuzzer = Fuzzer(attackers.ports, attackers.tokens, Random().getrandbits(32))
    while True:
        attackers.attempts += 1
        await fuzzer.send_one(PRINCIPALS[next(attackers.numbers) % (len(PRINCIPALS) - 1)])


@dataclass(frozen=True, slots=True)
class Clients:
    port: str
    count: int
    act: Callable[[Attackers, Peer], Awaitable[None]]
    pause_seconds: float = FLOOD_PAUSE_SECONDS


ATTACKS: dict[str, tuple[Clients, ...]] = {
    "unfinished HTTP bodies": (Clients("http", 20, unfinished_body, HELD_PAUSE_SECONDS),),
    "half-sent HTTP heads": (Clients("http", 1000, half_sent_head, HELD_PAUSE_SECONDS),),
    "large HTTP bodies": (Clients("http", 4, large_body),),
    "idle segment connections": (Clients("segment", 500, idle, HELD_PAUSE_SECONDS),),
    "idle connector connections": (Clients("connector", 1200, idle, HELD_PAUSE_SECONDS),),
    "HELLO flood": (Clients("connector", 20, hello),),
    "NOTIFY spin": (Clients("connector", 20, notify_spin),),
    "log flood": (Clients("connector", 20, logged_text),),
    "unauthenticated flood": (
        Clients("http", 10, unauthenticated_http),
        Clients("segment", 10, unauthenticated_segment),
    ),
    "fuzz": (Clients("http", 8, fuzzed),),
}


# The process.


class AttackProcess:
    """One for all attacks on a target, one at a time."""

    def __init__(self, target: Target) -> None:
        command = [sys.executable, "-m", "tests.security.hostile.attacks"]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._say(as_json(target))

    @contextmanager
    def running(self, attack: str) -> Iterator[list[float]]:
        """Begins when all its clients have begun, or wait for a place. At its end the list has its attempts per
        second.
        """
        rates: list[float] = []
        self._say(attack)
        try:
            yield rates
        finally:
            rates.append(float(self._say("")))

    def _say(self, line: str) -> str:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        assert answer.endswith("\n"), f"the process of the attacks has ended: {answer!r}"
        return answer.strip()

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()


async def _attack(ports: Ports, tokens: dict[str, str], clients: tuple[Clients, ...]) -> float:
    """Until there is a line to read. Returns the attempts per second."""
    start = time.monotonic()
    acts = [one for one in clients for _ in range(one.count)]
    attackers, ended = Attackers(ports, tokens, len(acts)), asyncio.Event()
    tasks = [
        asyncio.create_task(attackers.repeat(getattr(ports, one.port), one.act, one.pause_seconds)) for one in acts
    ]
    with suppress(TimeoutError):
        await asyncio.wait_for(attackers.all_connected.wait(), READY_SECONDS_MAX)
    _answer("ready")
    asyncio.get_running_loop().add_reader(sys.stdin, ended.set)
    await ended.wait()
    rate = attackers.attempts / (time.monotonic() - start)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    return rate


def _answer(text: str) -> None:
    print(text, flush=True)


def main() -> None:
    os.nice(19)
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    settings = json.loads(sys.stdin.readline())
    _answer("ready")
    while attack := sys.stdin.readline().strip():
        rate = asyncio.run(_attack(Ports(*settings["ports"]), settings["tokens"], ATTACKS[attack]))
        sys.stdin.readline()
        _answer(f"{rate:.1f}")


if __name__ == "__main__":
    main()
