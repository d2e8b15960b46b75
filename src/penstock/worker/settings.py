"""How a worker is set up: where its data are, which ports it listens on, and the limits of its parts."""

import ssl
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

from penstock.access.file import AccessControl, Open
from penstock.connectors.permissions import UNLIMITED, Permissions
from penstock.coordinator.settings import CoordinatorSettings
from penstock.core.logs import LogFormat
from penstock.ingest.settings import ProgramServerSettings
from penstock.pravega.settings import ControllerSettings
from penstock.segment_server.settings import ServerSettings
from penstock.store.settings import StoreSettings
from penstock.worker.http_limits import HttpLimits

STORE_FILE = "store.url"
"""In the data directory: where its journal is, if that is an object store. A worker that is started without it by
mistake would begin with an empty journal.
"""


@dataclass(frozen=True, slots=True)
class BucketOptions:
    """What the command line says about the bucket."""

    url: str
    cache: Path
    """A directory of its own, whose content is deleted at every start."""
    cache_bytes: int
    take_over: bool = False
    """Do not wait for the lease of the worker that has the shard."""
    shard: int = 0
    """Which shard the process serves or waits for."""
    host: str = ""
    """The host that has started the process."""


class Redirect(Enum):
    """What a standby does with a source that does not know MIGRATE."""

    AUTO = "auto"
    """RESTART with the owner's address; if the source comes back, it did not understand that, and is spliced."""
    RESTART = "restart"
    SPLICE = "splice"


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSettings:
    data: Path
    access: AccessControl = field(default_factory=Open)
    """Who may do what, on all ports."""
    http_host: str = "127.0.0.1"
    http_port: int = 7102
    http_allowed_hosts: frozenset[str] = frozenset()
    """Names in the Host header that requests may use besides the host itself and loopback names."""
    http_ssl: ssl.SSLContext | None = None
    certificate: Path | None = None
    """The file of the servers' certificate: clients on the same machine trust it."""
    store: StoreSettings = field(default_factory=StoreSettings)
    segment: ServerSettings = field(default_factory=ServerSettings)
    programs: ProgramServerSettings = field(default_factory=ProgramServerSettings)
    coordinator: CoordinatorSettings = field(default_factory=CoordinatorSettings)
    controller: ControllerSettings | None = None
    """None: there is no controller for Pravega's clients."""
    permissions: Permissions = UNLIMITED
    """What deployments and sinks may do on this machine."""
    http: HttpLimits = field(default_factory=HttpLimits)
    advertise: str = ""
    """The name or address under which others reach this machine; empty: the host that the ports listen on."""
    redirect: Redirect = Redirect.AUTO
    log_format: LogFormat = LogFormat.TEXT
