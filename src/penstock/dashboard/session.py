"""A user of the dashboard: who is logged in, and what the worker answers to this user's token."""

import asyncio
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

from penstock.client.coordinator import CoordinatorClient
from penstock.client.coordinator.client import ApplicationClient
from penstock.client.credentials import parse_worker, read_token, tls_context
from penstock.client.segments import SegmentClient
from penstock.core.address import Address
from penstock.core.errors import Unauthenticated
from penstock.protocol.api.history import Principal

T = TypeVar("T")

_RETRY_SECONDS = 2.0
"""A person is waiting, and a page asks again by itself."""
_SESSIONS_MAX = 1000
_IDLE_SECONDS_MAX = 12 * 3600
_RANKS = ("read", "write", "deploy", "admin")


@dataclass(eq=False)
class Session:
    """The token stays in this process: neither the browser nor a file has it."""

    worker: str
    token: str = field(repr=False)
    principal: Principal
    used: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        self._client = CoordinatorClient(self.worker, _RETRY_SECONDS, token=self.token)
        self._lock = asyncio.Lock()

    def may(self, role: str) -> bool:
        """Whether to offer what needs this role. The worker decides; this only spares a refusal."""
        return _RANKS.index(self.principal.role) >= _RANKS.index(role) if self.principal.role in _RANKS else True

    async def ask(self, question: Callable[[CoordinatorClient], T]) -> T:
        """One question at a time, in a thread: the client blocks. Raises what it raises."""
        self.used = time.monotonic()
        async with self._lock:
            return await asyncio.to_thread(question, self._client)

    async def ask_application(self, question: Callable[[ApplicationClient], T]) -> T:
        """The same, about what is deployed."""

        def ask() -> T:
            with ApplicationClient(self.worker, _RETRY_SECONDS, token=self.token) as client:
                return question(client)

        return await asyncio.to_thread(ask)

    async def read(self, question: Callable[[SegmentClient], T]) -> T:
        """Ask the worker's segment port."""
        status = await self.ask(lambda client: client.status())
        host = self._client.address.host
        tls = tls_context(host) if status.tls else None

        def ask() -> T:
            address = str(Address(host, status.ports["segment"]))
            with SegmentClient(address, token=self.token or None, ssl=tls, retry_seconds=_RETRY_SECONDS) as client:
                return question(client)

        return await asyncio.to_thread(ask)

    def close(self) -> None:
        self._client.close()


async def log_in(worker: str, token: str) -> Session:
    """Raises Unauthenticated for a token that the worker does not know, Unavailable without a worker."""

    def ask() -> Principal:
        with CoordinatorClient(worker, _RETRY_SECONDS, token=token) as client:
            return client.principal()

    return Session(worker, token, await asyncio.to_thread(ask))


class Sessions:
    """By the id in the browser's signed cookie. The oldest ones go first, and those that nobody has used for long."""

    def __init__(self, worker: str) -> None:
        self.worker = worker
        self._sessions: OrderedDict[str, Session] = OrderedDict()
        self._keys: set[str] = set()

    def one_time_key(self) -> str:
        """Logs its first user in as the owner of this machine's worker."""
        key = secrets.token_urlsafe(24)
        self._keys.add(key)
        return key

    async def enter_by_key(self, browser: str, key: str) -> None:
        """Raises Unauthenticated for a key that was used, or never existed."""
        if key not in self._keys:
            raise Unauthenticated("this link was used before, or is not from this dashboard", "Log in with a token.")
        self._keys.discard(key)
        await self.enter(browser, read_token(parse_worker(self.worker)[0]))

    async def enter(self, browser: str, token: str) -> None:
        self._forget_idle()
        self.leave(browser)
        self._sessions[browser] = await log_in(self.worker, token)
        while len(self._sessions) > _SESSIONS_MAX:
            self._sessions.popitem(last=False)[1].close()

    def leave(self, browser: str) -> None:
        if (left := self._sessions.pop(browser, None)) is not None:
            left.close()

    def of(self, browser: str) -> Session | None:
        self._forget_idle()
        return self._sessions.get(browser)

    def _forget_idle(self) -> None:
        limit = time.monotonic() - _IDLE_SECONDS_MAX
        for browser in [browser for browser, one in self._sessions.items() if one.used < limit]:
            self.leave(browser)
