"""DATA/ports.json: where programs and commands on this machine find the ports of the worker that runs on DATA."""

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from penstock.client.credentials import PORTS_FORMAT
from penstock.core.platforms import sync_file
from penstock.worker.settings import WorkerSettings

PORT_TAKEN = "Another program listens there"
"""What a worker that cannot listen on a port writes before it ends: those that start one recognize it."""


WAITING = "penstock.worker: waiting "
"""In the lines that a worker prints while it waits for another one, or for the object store, before it starts: those
that start one show them.
"""


_ANYWHERE = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104
"""Addresses that can be listened on but not connected to, and where this machine reaches what listens there."""


def reachable(host: str) -> str:
    """The address under which this machine reaches what listens on the host."""
    return _ANYWHERE.get(host, host)


class PortsFile:
    """Readers see all of it or nothing. While no worker runs, the file is kept under another name and never deleted:
    the next start overwrites it in place, which needs no room on a full disk.
    """

    def __init__(self, data: Path, name: str = "ports") -> None:
        self._file = data / f"{name}.json"
        self._aside = data / f"{name}.tmp"

    def publish(self, content: Mapping[str, object]) -> None:
        """Raises OSError; then there is no file."""
        self.withdraw()
        with open(os.open(self._aside, os.O_WRONLY | os.O_CREAT, 0o666), "wb") as file:  # noqa: PTH123
            file.write(json.dumps(content, sort_keys=True).encode() + b"\n")
            file.truncate()
            sync_file(file.fileno())  # so that its space is really on the disk
        self._aside.replace(self._file)

    @staticmethod
    def content(settings: WorkerSettings, ports: Mapping[str, int], id: str) -> dict[str, object]:  # noqa: A002
        """What commands on this machine need: the ports, who listens there, and how to reach the HTTP port."""
        content: dict[str, object] = {"format": PORTS_FORMAT, **ports, "id": id}
        content["host"] = reachable(settings.http_host)
        if settings.certificate is not None:
            content["certificate"] = str(settings.certificate.resolve())
        return content

    def withdraw(self) -> None:
        """No worker serves the ports in the file: it has stopped, or it was killed."""
        with suppress(OSError):  # readers check that the worker answers, and that it is the right one
            self._file.replace(self._aside)
