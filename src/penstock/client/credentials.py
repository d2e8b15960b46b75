"""Which worker a client talks to by default, and how they authenticate each other: the client's token, and TLS files.

A token is in the file that PENSTOCK_TOKEN_FILE names, or in ./penstock-data for the worker that runs there. A task on
a Spark cluster gets it with its code (`penstock.spark.carried`). It is never an option or an argument: those show in
Spark's plans and UI, and in lists of processes.
"""

import os
import ssl
from pathlib import Path

import msgspec

from penstock.core.address import Address, is_loopback
from penstock.core.errors import ProtocolError, RequestError, Unavailable

TOKEN_FILE = "PENSTOCK_TOKEN_FILE"  # noqa: S105  the variable's name
TLS_VARIABLES = ("PENSTOCK_TLS_CA", "PENSTOCK_TLS_CERT", "PENSTOCK_TLS_KEY")
"""PEM files: the authority of the worker's certificate; our own certificate and its key, if the worker wants one."""

OWN_DATA = Path("penstock-data")
"""Where `penstock run` and `penstock worker` store their data by default."""

HTTP_PORT = 7102
"""The port of a worker, if an address names none."""

WORKER_VARIABLE = "PENSTOCK_WORKER"
DEFAULT_WORKER = f"127.0.0.1:{HTTP_PORT}"
_NAME_IT = f"Name the worker's HTTP address, in {WORKER_VARIABLE} or with --worker."


PORTS_FORMAT = 1
"""The format version of ports.json: a command and the worker that it talks to may be of different versions."""


STANDBY_FILE = "standby.json"
"""The same, of a worker that waits for its shard: it does not serve, but it knows its cluster."""


class _Versioned(msgspec.Struct):
    format: int | None = None


def ports_file(data: Path, name: str = "ports.json") -> Path:
    return data / name


def short_address(worker: str) -> str:
    """Without the default scheme."""
    short = worker.removeprefix("http://")
    return short if parse_worker(short) == parse_worker(worker) else worker


class LocalWorker(msgspec.Struct, frozen=True):
    """What a worker writes to DATA/ports.json, for commands on the same machine."""

    connector: int
    segment: int
    http_port: int = msgspec.field(name="http")
    id: str
    host: str = "127.0.0.1"
    """Of its HTTP port."""
    certificate: str | None = None
    """If its ports speak TLS."""

    @property
    def http(self) -> str:
        """Its HTTP address."""
        address = Address(self.host, self.http_port)
        return short_address(f"{'http' if self.certificate is None else 'https'}://{address}")

    @property
    def ports(self) -> dict[str, int]:
        return {"connector": self.connector, "segment": self.segment, "http": self.http_port}

    @classmethod
    def read(cls, data: Path, name: str = "ports.json") -> "LocalWorker":
        """Raises Unavailable for a file that a worker of this version has not written or that cannot be read,
        FileNotFoundError without one.
        """
        file = ports_file(data, name)
        try:
            text = file.read_bytes()
            if (found := msgspec.json.decode(text, type=_Versioned).format) != PORTS_FORMAT:
                raise _other_version(file, found)
            return msgspec.json.decode(text, type=cls)
        except NotADirectoryError:
            raise FileNotFoundError(file) from None
        except PermissionError as error:
            raise Unavailable(f"{file} cannot be read: {error}", _NAME_IT) from None
        except msgspec.MsgspecError:
            raise Unavailable(f"{file} was not written by a worker", _NAME_IT) from None

    def listens_on(self, port: int) -> bool:
        return port in self.ports.values()

    def identify(self, data: Path) -> None:
        """From now on this process and its children use the worker's token, and trust its certificate."""
        if (data / "token").exists():
            os.environ[TOKEN_FILE] = str((data / "token").absolute())
        if self.certificate is not None:
            os.environ.setdefault(TLS_VARIABLES[0], self.certificate)


def _other_version(file: Path, found: int | None) -> Unavailable:
    has = "no format version" if found is None else f"format {found}"
    return Unavailable(
        f"{file} has {has}; this version reads format {PORTS_FORMAT}: the worker is of another version of Penstock",
        "Use that version, or restart the worker with this one.",
    )


def default_worker() -> str:
    """The HTTP address in PENSTOCK_WORKER, else that of the worker on ./penstock-data, which may have other ports, else
    127.0.0.1:7102. Raises Unavailable if ./penstock-data has a ports file that cannot be read: never another worker
    instead.
    """
    if named := os.environ.get(WORKER_VARIABLE):
        return named
    try:
        return LocalWorker.read(OWN_DATA).http
    except FileNotFoundError:
        return DEFAULT_WORKER


_accepted: dict[str | Address, str] = {}
"""Host → the token for its ports that this process was given; port → the token of our own directory, if a worker of the
same cluster listens there.
"""


def accept_token(host: str, token: str) -> None:
    """From now on this process sends the token to the ports of that host, and to no other. A token file that its
    environment names takes precedence.
    """
    _accepted[host] = token


def accept_worker(worker: str, named_by: str) -> None:
    """`worker` is of the same cluster as `named_by`, which has named it in a reply to us or to the driver: its host
    gets the token that this process was given for theirs. If that is the one of ./penstock-data, this port alone gets
    it. Raises ProtocolError for a worker without TLS, if theirs have it.
    """
    address, is_tls = parse_worker(worker)
    known = parse_workers(named_by)
    if (address, is_tls) in known:
        return
    if not is_tls and any(tls for _, tls in known):
        raise ProtocolError(f"{named_by} names {worker}, which does not use TLS")
    given = [_accepted[one.host] for one, _ in known if one.host in _accepted]
    if given:
        accept_token(address.host, given[0])
    elif own := next(filter(None, (_own_token(one) for one, _ in known)), ""):
        _accepted[address] = own


def accept_port(port: Address, of: Address) -> None:
    """The worker whose HTTP port is `of` listens there, too."""
    if of in _accepted:
        _accepted[port] = _accepted[of]


def read_token(address: Address | None = None) -> str:
    """For a port at this address. Empty if the variable is not set, this process was given no token for the host, and
    no worker on ./penstock-data listens there. Read each time: a token may be replaced while a program runs.
    """
    name = os.environ.get(TOKEN_FILE)
    if not name:
        given = None if address is None else _accepted.get(address.host) or _accepted.get(address)
        return given or _own_token(address)
    try:
        return Path(name).read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise RequestError(
            f"the token file {name} cannot be read: {error}",
            f"{TOKEN_FILE} must name a file that contains only the token.",
        ) from None


def _own_token(address: Address | None) -> str:
    """Sent only to this directory's own worker: others must not get it."""
    if address is None or not is_loopback(address.host):
        return ""
    try:
        is_own = LocalWorker.read(OWN_DATA).listens_on(address.port)
        return (OWN_DATA / "token").read_text().strip() if is_own else ""
    except (OSError, UnicodeDecodeError, Unavailable):
        return ""


def parse_worker(text: str) -> tuple[Address, bool]:
    """The HTTP address of the worker, or of the first of several that are separated by commas, and whether to use TLS:
    for `https://host:port`, and for `host:port` where PENSTOCK_TLS_CA names an authority and the host is not this
    machine's loopback.
    """
    return parse_workers(text)[0]


def parse_workers(text: str) -> list[tuple[Address, bool]]:
    """Several workers of one cluster, all with TLS or all without: the token of one must not go to another in plain.
    Raises RequestError.
    """
    workers = [_parse_worker(one.strip()) for one in text.split(",")]
    if len({is_tls for _, is_tls in workers}) > 1:
        raise RequestError(f"{text!r}: some of these workers use TLS, others do not", "Write https:// before each.")
    return workers


def _parse_worker(text: str) -> tuple[Address, bool]:
    scheme, found, rest = text.rpartition("://")
    if found and scheme not in ("http", "https"):
        raise RequestError(f"{text!r} is not an address", "Write host:port, or https://host:port.")
    address = Address.parse(rest.rstrip("/"), HTTP_PORT)
    if found:
        return address, scheme == "https"
    return address, bool(os.environ.get(TLS_VARIABLES[0])) and not is_loopback(address.host)


def tls_context(
    host: str, ca: str | None = None, cert: str | None = None, key: str | None = None
) -> ssl.SSLContext | None:
    """For connections to this host. Files that are None are taken from the environment; None without an authority.
    Raises RequestError for files that cannot be used.
    """
    given = zip((ca, cert, key), TLS_VARIABLES, strict=True)
    ca, cert, key = (file or os.environ.get(variable) for file, variable in given)
    return _context(host, ca, cert, key) if ca else None


def https_context(host: str) -> ssl.SSLContext:
    """The same, with the system's authorities where the environment names none."""
    ca, cert, key = map(os.environ.get, TLS_VARIABLES)
    return _context(host, ca, cert, key)


class CachedContexts:
    """Those of `https_context`, for a process that connects often: reading the system's authorities takes some 20 ms.
    Files that have changed are read again.
    """

    def __init__(self) -> None:
        self._found: dict[bool, tuple[object, ssl.SSLContext]] = {}
        """By whether the host's name is checked, with the files that it was made from."""

    def get(self, host: str) -> ssl.SSLContext:
        """Raises RequestError for files that cannot be used."""
        files = tuple(_state(os.environ.get(variable)) for variable in TLS_VARIABLES)
        is_checked = not is_loopback(host)
        state, context = self._found.get(is_checked, (None, None))
        if context is None or state != files:
            context = https_context(host)
            self._found[is_checked] = files, context
        return context


def _state(file: str | None) -> tuple[str, int, int] | None:
    try:
        found = None if not file else Path(file).stat()
    except OSError:  # whoever reads it raises
        return None
    return None if found is None or file is None else (file, found.st_mtime_ns, found.st_ino)


def _context(host: str, ca: str | None, cert: str | None, key: str | None) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=ca or None)
        if cert:
            context.load_cert_chain(cert, key or None)
    except OSError as error:  # SSLError is one
        raise RequestError(f"the TLS files cannot be used: {error}", "They must be PEM files.") from None
    # The file may contain the worker's own certificate. Its names need not include a loopback address.
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    context.check_hostname = not is_loopback(host)
    return context
