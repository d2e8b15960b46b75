"""What a Python worker of Spark keeps between calls, in a test that calls its functions itself."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager

from penstock.client.coordinator import CoordinatorClient
from penstock.spark import python_worker
from penstock.spark.sink.staging import Link


@contextmanager
def kept_for(_worker: str) -> Iterator[None]:
    """Connections, which are closed afterwards: none of them is left to another test. The caches do not list them."""
    try:
        yield
    finally:
        for one in gc.get_objects():
            if isinstance(one, Link):
                one.drop()
            elif isinstance(one, CoordinatorClient):
                one.close()
        python_worker.link.cache_clear()
        python_worker.coordinator.cache_clear()
