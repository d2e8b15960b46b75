"""How a command finds the worker it talks to."""

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer
from rich.console import Console

from penstock.client.coordinator.connection import Reported, connection_to
from penstock.client.credentials import (
    DEFAULT_WORKER,
    OWN_DATA,
    STANDBY_FILE,
    WORKER_VARIABLE,
    LocalWorker,
    parse_worker,
    ports_file,
    short_address,
    tls_context,
)
from penstock.client.segments import SegmentClient
from penstock.client.segments.failures import retrying
from penstock.core.errors import ProtocolError, RequestError, Unauthenticated, Unavailable
from penstock.protocol.api.status import WorkerStatus

HTTP_SECONDS_MAX = 10

_RETRY_SECONDS = 3.0
"""How long to wait for a worker that is being started: a person is waiting."""

_NAMED_MAX = 3
"""At most this many pipelines are named when a worker has no application."""

WorkerOption = Annotated[
    str | None,
    typer.Option(
        "--worker",
        envvar=WORKER_VARIABLE,
        metavar="HOST:PORT",
        help="The worker's HTTP address; with TLS, https://HOST:PORT. Several of a cluster are separated by commas. "
        f"Default: that of ./{OWN_DATA}, else {DEFAULT_WORKER}.",
        show_default=False,
    ),
]
DataOption = Annotated[
    Path | None, typer.Option("--data", metavar="DIR", help="Find the worker by its data directory instead.")
]
YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]


def report(text: str, *, as_json: bool, **found: object) -> None:
    """What a command has done: a sentence, or JSON for programs."""
    typer.echo(json.dumps(found) if as_json else text)


def get_json(worker: str, path: str) -> Any:
    """The worker's HTTP response. Raises Unavailable, Unauthenticated, Forbidden."""
    connection = connection_to(worker, HTTP_SECONDS_MAX)
    try:
        return json.loads(connection.ask("GET", path, None))
    except Reported as error:  # a standby, for example: it names the worker to ask
        raise Unavailable(f"{worker}: {error}", error.hint) from None
    except (Unavailable, ProtocolError, ValueError) as error:
        raise Unavailable(
            f"no worker answers on {worker}: {error}",
            "Start it (penstock worker --data DIR), and pass its HTTP address or --data DIR.",
        ) from None
    finally:
        connection.close()


def worker_status(address: str) -> WorkerStatus:
    """The worker's /status. Raises Unavailable, also if something else answers at this address."""
    try:
        return msgspec.convert(get_json(address, "/status"), WorkerStatus)
    except msgspec.ValidationError:
        raise Unavailable(
            f"{address} is not an HTTP port of a worker of this version", "Use --worker HOST:PORT, or --data DIR."
        ) from None


def worker_to_read(worker: str | None, data: Path | None) -> str:
    """The HTTP address of the worker, for a command that only reads. Raises Unavailable."""
    address, note = address_to_read(worker, data)
    if note:
        report_note(note)
    return address


def address_to_read(worker: str | None, data: Path | None) -> tuple[str, str]:
    """The same, with a note if the worker is not the one on this directory; "" if it is."""
    address, is_chosen = _found(worker, data)
    if not is_chosen:
        with _named_if_it_refuses(address):
            status = worker_status(address)
        if not _serves(status, OWN_DATA):
            return address, f"no worker runs on ./{OWN_DATA}; this is {_described(address, status)}"
    return address, ""


def worker_to_change(worker: str | None, data: Path | None, *, yes: bool, retry_seconds: float = _RETRY_SECONDS) -> str:
    """The HTTP address of the worker that a command is about to change; it is reported first. A worker that was not
    named and is not this directory's is changed only if the user agrees. Raises Unavailable, RequestError.
    """
    address, is_chosen = _found(worker, data)
    with nullcontext() if is_chosen else _named_if_it_refuses(address):
        status = _status(address, retry_seconds)
    described = _described(address, status)
    if is_chosen or yes or _serves(status, OWN_DATA):
        report_note(described)
        return address
    if not sys.stdin.isatty():
        raise RequestError(
            f"no worker runs on ./{OWN_DATA}, and this one was not named: {described}",
            f"If you mean it, use --worker {address} or --yes; otherwise --data DIR.",
        )
    report_note(described)
    typer.confirm(f"It is not the worker of ./{OWN_DATA}. Change it?", abort=True, err=True)
    return address


@contextmanager
def _named_if_it_refuses(address: str) -> Iterator[None]:
    """The worker on the default port may be somebody else's, and our token is then the wrong one."""
    try:
        yield
    except Unauthenticated as error:
        raise Unauthenticated(
            f"no worker runs on ./{OWN_DATA}, and the one on {address} refuses the request: {error}",
            f"Name the worker that you mean: --data DIR, or --worker HOST:PORT. {error.hint}",
        ) from None


def _found(worker: str | None, data: Path | None) -> tuple[str, bool]:
    """The address, and whether it is the worker that was named or this directory's own."""
    if data is not None:
        return local_worker(data).http, True
    if worker is not None:
        return short_address(worker.rstrip("/")), True
    if ports_file(OWN_DATA).exists():  # this directory has a worker of its own: never another one instead
        return local_worker(OWN_DATA).http, True
    return DEFAULT_WORKER, False


def local_worker(data: Path) -> LocalWorker:
    """The worker that runs on this directory. A killed worker leaves its ports file, and another may listen on those
    ports by now, so its id is checked. Raises Unavailable.
    """
    file, start = ports_file(data), f"Start it: penstock worker --data {data}"
    try:
        found = LocalWorker.read(data)
    except FileNotFoundError:
        if (standby := standby_on(data)) is not None:
            raise Unavailable(
                f"the worker on {data} is a standby: it does not serve its shard",
                f"Ask the owner, which penstock cluster status --worker {standby.http} names.",
            ) from None
        raise Unavailable(f"no worker runs on {data}: {file} not found", start) from None
    found.identify(data)
    try:
        status = worker_status(found.http)
    except Unavailable as error:
        raise Unavailable(f"no worker runs on {data}: it was killed, or is just stopping", start) from error
    except Unauthenticated:
        raise Unavailable(
            f"no worker runs on {data}: its port is now used by another one, which does not accept {data / 'token'}",
            start,
        ) from None
    if status.id != found.id or status.ports != found.ports:
        other = _described(found.http, status)
        raise Unavailable(f"no worker runs on {data}: its port is now used by another one, {other}", start)
    return found


def standby_on(data: Path) -> LocalWorker | None:
    """The standby that runs on this directory, according to its file."""
    try:
        return LocalWorker.read(data, STANDBY_FILE)
    except (FileNotFoundError, Unavailable):
        return None


def member_to_read(worker: str | None, data: Path | None) -> str:
    """The HTTP address of a worker of a cluster, which may be a standby. Raises Unavailable."""
    address, note = member_address(worker, data)
    if note:
        report_note(note)
    return address


def member_address(worker: str | None, data: Path | None) -> tuple[str, str]:
    """The same, with a note as `address_to_read` has one."""
    place = data or (OWN_DATA if worker is None else None)
    if place is not None and not ports_file(place).exists() and (standby := standby_on(place)) is not None:
        standby.identify(place)
        return standby.http, ""
    return address_to_read(worker, data)


def host_of(worker: str) -> str:
    """The host of a worker's HTTP address, for use in another address."""
    return str(parse_worker(worker)[0]).rpartition(":")[0]


def _status(address: str, retry_seconds: float) -> WorkerStatus:
    return retrying(retry_seconds, Unavailable)(worker_status, address)


def _serves(status: WorkerStatus, data: Path) -> bool:
    return status.data == str(data.resolve())


def _described(address: str, status: WorkerStatus) -> str:
    data = f"./{OWN_DATA}" if _serves(status, OWN_DATA) else status.data
    return f"worker {address}: {_application(status)}, data in {data}"


def _application(status: WorkerStatus) -> str:
    """The name of the application: its file, or its pipelines if they come from Python files."""
    if status.application is not None and status.application.name:
        return f"application {status.application.name}"
    known = [pipeline.name for pipeline in status.pipelines]
    names = [*dict.fromkeys([*known, *(pipeline.name for pipeline in status.starting)])]
    if not names:
        return "no application"
    more = f" and {len(names) - _NAMED_MAX} more" if len(names) > _NAMED_MAX else ""
    return f"{'pipeline' if len(names) == 1 else 'pipelines'} {', '.join(names[:_NAMED_MAX])}{more}"


def report_note(text: str) -> None:
    Console(stderr=True, highlight=False).print(text, markup=False, soft_wrap=True)


@contextmanager
def segment_client(address: str) -> Iterator[SegmentClient]:
    """A client of the segment port of the worker with this HTTP address."""
    status, host = worker_status(address), host_of(address)
    context = tls_context(host) if status.tls else None
    if status.tls and context is None:
        raise RequestError(
            "the worker accepts only TLS", "Name its certificate authority: penstock segment --tls-ca FILE VERB …"
        )
    with SegmentClient(f"{host}:{status.ports['segment']}", ssl=context) as client:
        yield client
