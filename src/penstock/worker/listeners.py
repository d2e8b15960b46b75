"""The ports of a worker on a bucket, which it keeps while it is a standby, an owner, and a standby again.

Whoever serves a port gets a duplicate of its socket, and closes that. Programs that connect in between wait for the
next one. The segment port is different: nothing answers on it while the worker is a standby, so it is bound and does
not listen, and programs are refused at once.
"""

import socket

from penstock.core.address import Address
from penstock.worker.directory import CONNECTOR, HTTP, SEGMENT
from penstock.worker.settings import WorkerSettings

_BACKLOG = 1024
_EVERYWHERE = ("", "0.0.0.0", "::")  # noqa: S104


def allowed_hosts(settings: WorkerSettings) -> frozenset[str]:
    """The names under which others in the cluster reach the HTTP port are names of this worker."""
    own = {settings.advertise} if settings.advertise else set()
    if settings.http_host in _EVERYWHERE:
        own.add(socket.gethostname())
    return settings.http_allowed_hosts | own


class Listeners:
    def __init__(self, settings: WorkerSettings) -> None:
        """Raises OSError when a port is taken."""
        self._settings = settings
        self._sockets: dict[str, socket.socket] = {}
        self.ports: dict[str, int] = {}
        wanted = {CONNECTOR: settings.programs.port, SEGMENT: settings.segment.port, HTTP: settings.http_port}
        try:
            for name, port in wanted.items():
                self._bind(name, port)
        except BaseException:
            self.close()
            raise
        self._sockets[CONNECTOR].listen(_BACKLOG)
        self._sockets[HTTP].listen(_BACKLOG)

    def _host(self, name: str) -> str:
        settings = self._settings
        return {CONNECTOR: settings.programs.host, SEGMENT: settings.segment.host, HTTP: settings.http_host}[name]

    def _bind(self, name: str, port: int) -> None:
        host = self._host(name)
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._sockets[name] = bound = socket.socket(family, socket.SOCK_STREAM)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            bound.bind((host, port))
        except OSError as error:
            raise OSError(error.errno, f"{error.strerror}: {Address(host, port)}") from error
        self.ports[name] = bound.getsockname()[1]

    def addresses(self) -> dict[str, str]:
        """By port: where others reach this worker."""
        return {name: str(Address(self._advertised(name), port)) for name, port in self.ports.items()}

    def _advertised(self, name: str) -> str:
        host = self._host(name)
        return self._settings.advertise or (socket.gethostname() if host in _EVERYWHERE else host)

    def take(self, name: str) -> socket.socket:
        """For one server, which closes it."""
        bound = self._sockets[name]
        if name != SEGMENT:
            return bound.dup()
        if bound.fileno() < 0:
            self._bind(name, self.ports[name])
        return self._sockets[name]

    def reserve_segment(self) -> None:
        """The server has closed it: bind it again, so that no other program gets the port."""
        if self._sockets[SEGMENT].fileno() < 0:
            self._bind(SEGMENT, self.ports[SEGMENT])

    def close(self) -> None:
        for one in self._sockets.values():
            one.close()
