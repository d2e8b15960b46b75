"""What a Python worker of Spark keeps between calls, in a test that calls its functions itself."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager

from penstock.client.coordinator import CoordinatorClient
from penstock.spark import python_worker


@contextmanager
def kept_for(worker: str) -> Iterator[None]:
    """Connections to this worker, which are closed afterwards: none of them is left to another test."""
    try:
        yield
    finally:
        python_worker.link(worker, None, None, None).drop()
        python_worker.link(worker, None, None, None, "side outputs").drop()
        for one in gc.get_objects():  # also those of tests that keep nothing: the cache does not list them
            if isinstance(one, CoordinatorClient):
                one.close()
        python_worker.link.cache_clear()
        python_worker.coordinator.cache_clear()
