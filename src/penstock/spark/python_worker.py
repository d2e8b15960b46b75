"""State that a Python worker of Spark keeps between calls: workers are reused, and forked before they do anything."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

from penstock.client.coordinator import CoordinatorClient
from penstock.client.credentials import parse_worker, tls_context
from penstock.core.errors import PenstockError
from penstock.core.logs import set_up_logging
from penstock.spark.sink.staging import Link, segment_address

_FREEZES = 3
"""Some modules are imported after the first call. Not at every call: garbage must not be retained forever."""

_frozen = 0


def freeze() -> None:
    """Called first in each of these processes. Excludes all existing objects from garbage collection: Spark's workers
    collect after each task, and traversing PySpark's modules costs 60 ms of every batch. Also sets up logging, as their
    stderr is part of Spark's log. Only the first calls do anything.
    """
    global _frozen  # noqa: PLW0603  one for the process
    if not _frozen:
        set_up_logging()
    if _frozen < _FREEZES:
        _frozen += 1
        gc.freeze()


@contextmanager
def hinted() -> Iterator[None]:
    """Appends an error's hint to its traceback: Spark shows nothing else."""
    try:
        yield
    except PenstockError as error:
        if error.hint and error.hint not in getattr(error, "__notes__", ()):
            error.add_note(error.hint)
        raise


@cache
def coordinator(worker: str) -> CoordinatorClient:
    """Cached, with its connection."""
    return CoordinatorClient(worker)


@cache
def link(worker: str, ca: str | None, cert: str | None, key: str | None) -> Link:
    """The connection to the worker's segment port. TLS files that are None are taken from the environment."""
    tls = tls_context(parse_worker(worker)[0].host, ca, cert, key)
    return Link(lambda: segment_address(worker, tls=tls is not None), tls)
