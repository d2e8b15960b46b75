"""What tasks on a Spark cluster need that no option may show: the driver's token.

Everything that Spark is given by name is shown somewhere: options in plans and in the SQL page, settings and
`spark.executorEnv.*` on the environment page, in the event log and in the command line of the driver's JVM, added files
by their names, and readable for every user of an executor's machine. What is pickled with the code of tasks is shown
nowhere: it travels as Spark's code does, and is in the memory of the processes that run it, or in Spark's temporary
directories, which only their user can read. So a `Carried` is part of the readers, writers and operators that are
pickled, and leaves the token in the process that unpickles it.

It arrives with every task, so also at an executor that replaces another one.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache
from typing import Any

from penstock.client.credentials import accept_token, parse_worker, parse_workers, read_token
from penstock.core.errors import PenstockError
from penstock.spark.run.executor_probe import version_of

_is_shown: ContextVar[bool] = ContextVar("is_shown", default=False)

_arrived_at: str | None = None
"""The worker's address in a process of an executor; None elsewhere."""


class OtherVersion(PenstockError):
    """Of Penstock, on the machine of an executor. No event is to blame, and no pipeline: it can continue as soon as the
    machine has the driver's version.
    """

    hint = "Install the same version on all machines of the Spark cluster: penstock check --master URL shows them."


@dataclass(frozen=True, slots=True)
class Carried:
    """Pickled on the driver, where the token is read at that moment, and unpickled on an executor."""

    worker: str
    """The worker's HTTP address on the driver, whose token it is. Several of a cluster are separated by commas."""
    advertised: str
    """Its address on executors, or several: the token is for all of them."""
    has_token: bool = True
    """False: executors have a token file of their own."""

    def __reduce__(self) -> tuple[Callable[..., Carried], tuple[Any, ...]]:
        leaves_out = _is_shown.get() or not self.has_token
        token = "" if leaves_out else read_token(parse_worker(self.worker)[0])
        return _arrive, (self.worker, self.advertised, self.has_token, token, _version())


def _arrive(worker: str, advertised: str, has_token: bool, token: str, version: str) -> Carried:
    """Raises OtherVersion, such as on an executor that has replaced another."""
    global _arrived_at  # noqa: PLW0603  one for the process
    if version != _version():
        raise OtherVersion(f"{socket.gethostname()} has Penstock {_version()}, the driver has {version}")
    if token:
        for address, _ in parse_workers(advertised):
            accept_token(address.host, token)
    _arrived_at = advertised
    return Carried(worker, advertised, has_token)


@cache
def _version() -> str:
    return version_of("penstock")


@contextmanager
def shown() -> Iterator[None]:
    """What is pickled in this context becomes an option: without a token. The load that has the option carries it."""
    before = _is_shown.set(True)
    try:
        yield
    finally:
        _is_shown.reset(before)


def unreachable_hint() -> str | None:
    """What to do if a task of an executor cannot reach the worker; None in any other process."""
    if _arrived_at is None:
        return None
    return (
        f"This task ran on {socket.gethostname()}, where the worker's address is {_arrived_at}. Let the worker listen "
        "on that address (penstock worker --host, --http-host), or name another one that executors reach: penstock run "
        "--advertised-worker HOST:PORT. penstock check --master URL tries it on all executors."
    )


def advertised_address(worker: str) -> str:
    """The address with its scheme: on an executor, other variables may be set, from which it would be inferred."""
    return ",".join(f"https://{address}" if is_tls else str(address) for address, is_tls in parse_workers(worker))
