"""Fuzzing of all ports for some seconds, as one principal after the other. After each slice of time the worker's
invariants must hold.
"""

import asyncio
import random
import re
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from itertools import count

from tests.security.hostile.inputs import PORTS, Values
from tests.security.hostile.target import Ports, Target

PRINCIPALS = ("nobody", "reader", "tenant", "owner")
TASKS = 8
"""Clients at the same time."""
REPLY_SECONDS_MAX = 0.3
"""Who sends half a request waits in vain: then the client goes away."""
LAST_REQUESTS = 12
SHOWN_BYTES = 300

_STATUS = re.compile(rb"HTTP/1\.1 (\d\d\d)")


class Fuzzer:
    """Sends what the seed determines: request after request, from several clients at a time."""

    def __init__(self, ports: Ports, tokens: dict[str, str], seed: int) -> None:
        self.sent = 0
        self.failure = ""
        self._ports = ports
        self._tokens = tokens
        self._seed = seed
        self._numbers = count()
        self._last: deque[str] = deque(maxlen=LAST_REQUESTS)

    def last_requests(self) -> str:
        return "\n".join(self._last)

    async def run(self, principal: str, seconds: float) -> None:
        """Stops early where a reply is a failure of the worker's."""
        deadline = time.monotonic() + seconds
        await asyncio.gather(*(self._client(principal, deadline) for _ in range(TASKS)))

    async def _client(self, principal: str, deadline: float) -> None:
        while time.monotonic() < deadline and not self.failure:
            await self.send_one(principal)

    async def send_one(self, principal: str) -> None:
        number = next(self._numbers)
        rng = random.Random(f"{self._seed}/{principal}/{number}")
        port = rng.choices([*PORTS], [often for often, _ in PORTS.values()])[0]
        data = PORTS[port][1](Values(rng, principal, self._tokens[principal]))
        shown = data if not self._tokens[principal] else data.replace(self._tokens[principal].encode(), b"TOKEN")
        self._last.append(f"{number} {principal} {port}: {shown[:SHOWN_BYTES]!r} ({len(data)} bytes)")
        reply = await _exchange(getattr(self._ports, port), data)
        self.sent += 1
        if port == "http" and _is_failure(reply, is_head=data.startswith(b"HEAD")):
            self.failure = f"request {number} of {principal} was answered {reply[:1000]!r}:\n{shown[:1000]!r}"


async def _exchange(port: int, data: bytes) -> bytes:
    """What the worker answers until it closes the connection, or for a moment."""
    reply = bytearray()
    with suppress(OSError, TimeoutError):
        async with asyncio.timeout(REPLY_SECONDS_MAX):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            try:
                writer.write(data)
                await writer.drain()
                while part := await reader.read(1 << 16):
                    reply += part
            finally:
                writer.transport.abort()
    return bytes(reply)


def _is_failure(reply: bytes, *, is_head: bool) -> bool:
    """503 is for what may work later, and has a reason in it."""
    found = _STATUS.match(reply)
    status = int(found[1]) if found else 0
    return status >= 500 and not (status == 503 and (is_head or b'"kind":' in reply))


def fuzz(
    target: Target, seed: int, seconds: float, slice_seconds: float, on_slice: Callable[[str, int], None]
) -> Fuzzer:
    """`on_slice` gets the principal and how many requests were sent so far. AssertionError, with the seed and the last
    requests, for an invariant that does not hold.
    """
    fuzzer = Fuzzer(target.ports, target.tokens, seed)
    spent = 0.0
    for number in count():
        if spent >= seconds:
            return fuzzer
        principal = PRINCIPALS[number % len(PRINCIPALS)]
        asyncio.run(fuzzer.run(principal, min(slice_seconds, seconds - spent)))
        spent += slice_seconds
        try:
            assert not fuzzer.failure, fuzzer.failure
            if principal == "owner":
                target.deploy_canary()
            target.check()
        except Exception as error:
            raise AssertionError(f"seed {seed}: {error}\nlast requests:\n{fuzzer.last_requests()}") from error
        on_slice(principal, fuzzer.sent)
    raise AssertionError
