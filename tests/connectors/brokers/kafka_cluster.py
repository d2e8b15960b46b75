"""librdkafka's mock cluster in a process of its own: real sockets and Kafka's protocol, with topics in memory.

It has groups, rebalances and committed offsets. It keeps 5 MiB or 100,000 records of a partition, and then deletes the
oldest. It answers to transactions, but neither hides nor removes what an aborted one has written.

    python -m tests.connectors.brokers.kafka_cluster      commands on standard input, an answer to each
"""

import ctypes
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Self

from tests.support.waiting import SECONDS_MAX

BROKER = 1


def _library() -> Any:
    spec = find_spec("confluent_kafka")
    assert spec is not None
    assert spec.origin is not None
    packages = Path(spec.origin).parents[1]
    (path,) = [*packages.glob("confluent_kafka.libs/librdkafka*")]
    library = ctypes.CDLL(str(path))
    for name in ("rd_kafka_conf_new", "rd_kafka_new", "rd_kafka_mock_cluster_new"):
        getattr(library, name).restype = ctypes.c_void_p
    library.rd_kafka_mock_cluster_bootstraps.restype = ctypes.c_char_p
    return library


def serve() -> None:
    library = _library()
    error = ctypes.create_string_buffer(512)
    settings = ctypes.c_void_p(library.rd_kafka_conf_new())
    handle = ctypes.c_void_p(library.rd_kafka_new(0, settings, error, ctypes.c_size_t(512)))
    cluster = ctypes.c_void_p(library.rd_kafka_mock_cluster_new(handle, 1))
    print(library.rd_kafka_mock_cluster_bootstraps(cluster).decode(), flush=True)
    for line in sys.stdin:
        match line.split():
            case ["topic", name, partitions]:
                library.rd_kafka_mock_topic_create(cluster, name.encode(), int(partitions), 1)
            case ["down"]:
                library.rd_kafka_mock_broker_set_down(cluster, BROKER)
            case ["up"]:
                library.rd_kafka_mock_broker_set_up(cluster, BROKER)
            case ["fail", api, *codes]:
                errors = (ctypes.c_int * len(codes))(*map(int, codes))
                library.rd_kafka_mock_push_request_errors_array(
                    cluster, ctypes.c_int16(int(api)), ctypes.c_size_t(len(codes)), errors
                )
        print("done", flush=True)


class KafkaCluster:
    """One broker. `down` closes all connections and accepts none; the topics stay."""

    def __init__(self) -> None:
        command = [sys.executable, "-m", __name__]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.brokers = self._answer()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def topic(self, name: str, partitions: int = 4) -> None:
        self._do(f"topic {name} {partitions}")

    def down(self) -> None:
        self._do("down")

    def up(self) -> None:
        self._do("up")

    def fail(self, api: int, *codes: int) -> None:
        """The next requests of this kind get these errors."""
        self._do(f"fail {api} {' '.join(map(str, codes))}")

    def _do(self, command: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(command + "\n")
        self._process.stdin.flush()
        assert self._answer() == "done"

    def _answer(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def close(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.communicate(timeout=SECONDS_MAX)


if __name__ == "__main__":
    serve()
