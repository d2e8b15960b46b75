"""A user of the dashboard: who is logged in, and what the worker answers to this user's token."""

import asyncio
import secrets
import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from time import monotonic as _now
from typing import TypeVar

from penstock.client.coordinator import CoordinatorClient
from penstock.client.coordinator.client import ApplicationClient
from penstock.client.credentials import https_context, parse_worker, read_token
from penstock.client.segments import SegmentClient
from penstock.core.address import Address
from penstock.core.errors import PenstockError, Unauthenticated, Unavailable
from penstock.protocol.api.history import Principal, WorkerHistory

T = TypeVar("T")

_RETRY_SECONDS = 2.0
"""A person is waiting, and a page asks again by itself."""
_ANSWER_SECONDS_MAX = 5.0
"""For the same reason. A change may take longer, and has the client's usual time."""
_ASKED_MAX = 4
"""Questions of one user at the same time: a tab does not wait for the others, and none can flood the worker."""
_THREADS_MAX = 32
"""Of all users: while the worker is silent, each question keeps a thread."""
_SESSIONS_MAX = 1000
_SECONDS_MAX = 12 * 3600
_KEY_SECONDS_MAX = 600
_HISTORY_SECONDS = 4.0
_RANKS = ("read", "write", "deploy", "admin")


_THREADS = ThreadPoolExecutor(_THREADS_MAX, "dashboard")


async def _in_thread(question: Callable[[], T]) -> T:
    """The clients block."""
    return await asyncio.get_running_loop().run_in_executor(_THREADS, question)


class WorkerAddress:
    """Where the worker is: it may have other ports after a restart."""

    def __init__(self, text: str, find: Callable[[], str] | None = None) -> None:
        """`find` looks for it again, and raises a PenstockError if it is not there."""
        self.text = text
        self._find = find
        self._looking = threading.Lock()

    def look_again(self) -> None:
        """Blocks. Without a worker, the address stays."""
        if self._find is not None and self._looking.acquire(blocking=False):
            try:
                with suppress(PenstockError):
                    self.text = self._find()
            finally:
                self._looking.release()


class Session:
    """The token stays in this process: neither the browser nor a file has it."""

    def __init__(self, worker: WorkerAddress, token: str, principal: Principal) -> None:
        self.worker = worker
        self.principal = principal
        self.is_dark: bool | None = None
        """None: as the browser prefers."""
        self.ends = _now() + _SECONDS_MAX
        self._token = token
        self._idle: list[tuple[str, CoordinatorClient]] = []
        """Connections that nobody uses at the moment, with the address that they were made for."""
        self._taking = threading.Lock()
        self._asked = asyncio.Semaphore(_ASKED_MAX)
        self._histories: dict[tuple[str, ...], tuple[float, WorkerHistory]] = {}

    def may(self, role: str) -> bool:
        """Whether to offer what needs this role. The worker decides; this only spares a refusal."""
        return _RANKS.index(self.principal.role) >= _RANKS.index(role) if self.principal.role in _RANKS else True

    async def ask(self, question: Callable[[CoordinatorClient], T]) -> T:
        """In a thread, and a few at the same time. Raises what the question raises."""

        def ask() -> T:
            address, client = self._client()
            try:
                found = question(client)
            except BaseException:
                client.close()
                raise
            self._give_back(address, client)
            return found

        return await self._answer(ask)

    async def change(self, command: Callable[[CoordinatorClient], T]) -> T:
        """As `ask`, for what may take the worker longer: changes, and long searches."""

        def change() -> T:
            with CoordinatorClient(self.worker.text, _RETRY_SECONDS, token=self._token) as client:
                return command(client)

        return await self._answer(change)

    async def _answer(self, question: Callable[[], T]) -> T:
        def ask() -> T:
            try:
                return question()
            except Unavailable:
                self.worker.look_again()
                raise

        self._check()
        async with self._asked:
            return await _in_thread(ask)

    def _client(self) -> tuple[str, CoordinatorClient]:
        address = self.worker.text
        with self._taking:
            idle, self._idle = self._idle, []
            for made_for, client in idle:
                if made_for == address:
                    self._idle.append((made_for, client))
                else:
                    client.close()
            if self._idle:
                return self._idle.pop()
        made = CoordinatorClient(address, _RETRY_SECONDS, timeout_seconds=_ANSWER_SECONDS_MAX, token=self._token)
        return address, made

    def _give_back(self, address: str, client: CoordinatorClient) -> None:
        with self._taking:
            self._idle.append((address, client))
        if _now() >= self.ends:
            self.close_idle()

    def close_idle(self) -> None:
        with self._taking:
            for _, client in self._idle:
                client.close()
            self._idle.clear()

    async def history(self, *series: str) -> WorkerHistory:
        """The worker samples every five seconds: it is asked no more often."""
        now = _now()
        found = self._histories.get(series)
        if found is None or now - found[0] >= _HISTORY_SECONDS:
            self._histories = {key: one for key, one in self._histories.items() if now - one[0] < _HISTORY_SECONDS}
            self._histories[series] = found = (now, await self.ask(lambda client: client.history(series)))
        return found[1]

    async def ask_application(self, question: Callable[[ApplicationClient], T]) -> T:
        """As `change`, about what is deployed."""

        def ask() -> T:
            with ApplicationClient(self.worker.text, _RETRY_SECONDS, token=self._token) as client:
                return question(client)

        return await self._answer(ask)

    async def read(self, question: Callable[[SegmentClient], T]) -> T:
        """Ask the worker's segment port."""
        status, host = await self.ask(lambda client: (client.status(), client.address.host))

        def ask() -> T:
            address = str(Address(host, status.ports["segment"]))
            tls = https_context(host) if status.tls else None
            with SegmentClient(address, token=self._token, ssl=tls, retry_seconds=_RETRY_SECONDS) as client:
                return question(client)

        return await self._answer(ask)

    def close(self) -> None:
        """Its pages that are still open get nothing more."""
        self.ends = 0.0
        self.close_idle()

    def _check(self) -> None:
        if _now() >= self.ends:
            raise Unauthenticated("this session is over", "Log in again.")


async def log_in(worker: WorkerAddress, token: str) -> Session:
    """Raises Unauthenticated for a token that the worker does not know, Unavailable without a worker."""

    def ask() -> Principal:
        with CoordinatorClient(worker.text, _RETRY_SECONDS, timeout_seconds=_ANSWER_SECONDS_MAX, token=token) as client:
            try:
                return client.principal()
            except Unavailable:
                worker.look_again()
                raise

    return Session(worker, token, await _in_thread(ask))


class Sessions:
    """By a random id in the browser's signed cookie, which is new with each login. Sessions end after twelve hours."""

    def __init__(self, worker: str, find: Callable[[], str] | None = None) -> None:
        """`find`: as for WorkerAddress."""
        self.worker = WorkerAddress(worker, find)
        self._sessions: OrderedDict[str, Session] = OrderedDict()
        self._keys: dict[str, float] = {}
        """One-time keys, and when they expire."""

    def one_time_key(self) -> str:
        """Logs its first user in as the owner of this machine's worker, within ten minutes."""
        key = secrets.token_urlsafe(24)
        self._keys[key] = _now() + _KEY_SECONDS_MAX
        return key

    async def enter_by_key(self, key: str) -> str:
        """Returns the id of a new session. Raises Unauthenticated for a key that was used, is too old or unknown."""
        expires = self._keys.pop(key, 0.0)
        if _now() >= expires:
            hint = "Log in with a token, or start the dashboard again."
            raise Unauthenticated("this link was used before, is older than ten minutes, or is not ours", hint)
        try:
            return await self.enter(read_token(parse_worker(self.worker.text)[0]))
        except PenstockError:
            self._keys[key] = expires
            raise

    async def enter(self, token: str) -> str:
        """Returns the id of a new session. Raises Unauthenticated for a token that the worker does not know."""
        session = await log_in(self.worker, token)
        self._forget()
        number = secrets.token_urlsafe(24)
        self._sessions[number] = session
        while len(self._sessions) > _SESSIONS_MAX:
            self._sessions.popitem(last=False)[1].close()
        return number

    def leave(self, number: str) -> None:
        if (left := self._sessions.pop(number, None)) is not None:
            left.close()

    def of(self, number: str | None) -> Session | None:
        self._forget()
        return None if number is None else self._sessions.get(number)

    def _forget(self) -> None:
        now = _now()
        for number in [number for number, one in self._sessions.items() if one.ends <= now]:
            self.leave(number)
