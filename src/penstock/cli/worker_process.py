"""The process of a worker, a host or a shard: runs until SIGTERM or Ctrl-C."""

import asyncio
import errno
import logging
import resource
import signal
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import typer

from penstock.cli.worker_access import with_access
from penstock.core.errors import RequestError, StoreFailed, WorkerFailed
from penstock.core.logs import LogFormat, log_line
from penstock.core.tls_handshakes import HandshakeLimits
from penstock.worker.certificates import TlsFiles
from penstock.worker.host_link import LinkOptions
from penstock.worker.ports_file import PORT_TAKEN
from penstock.worker.settings import BucketOptions, WorkerSettings

if TYPE_CHECKING:
    from penstock.cluster.lease_state import OwnerSeen
    from penstock.worker.worker import Worker

log = logging.getLogger("penstock.worker")


class Place(NamedTuple):
    """What a process is: a worker on a disk, a host, or a process of one shard."""

    bucket: BucketOptions | None
    wants: int | None
    """Of a host."""
    link: LinkOptions | None
    """To the host that has started it."""
    log_file: Path | None

    def access_directory(self, data: Path) -> Path:
        return data if self.link is None else Path(self.link.data)


def serve(settings: WorkerSettings, tls: TlsFiles | None, token_file: Path | None, place: Place) -> None:
    """Until SIGTERM or Ctrl-C. Raises RequestError if the worker cannot start."""
    try:
        settings = fitting(settings, _allow_many_files())
        try:
            access = place.access_directory(settings.data)
            _run_in_loop(with_access(settings, tls, token_file, access), place)
        except KeyboardInterrupt:  # before the loop runs
            _print("stopped before it has taken over anything", settings.log_format)
    except (StoreFailed, WorkerFailed) as error:
        log.critical("the worker stops: %s", error)
        raise
    except OSError as error:
        raise RequestError(f"the worker cannot start: {error}", hint_of(error, settings.data)) from None


def _print(text: str, form: LogFormat) -> None:
    """To stderr, whatever is logged: standard output is for sinks and the stdio connector."""
    typer.echo(log_line(text, log.name, form=form), err=True)


def _allow_many_files() -> int:
    """Every connection is a file; the usual soft limit of 1,024 is below what the worker accepts. Returns how many the
    system allows.
    """
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    allowed, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 2**63 if allowed == resource.RLIM_INFINITY else allowed


_FILES_RESERVED = 256
"""Files for the journal, connectors, sinks and the worker itself, which connections must not take."""
_PORTS = 3


def fitting(settings: WorkerSettings, files: int) -> WorkerSettings:
    """With fewer connections, if the system does not allow enough open files."""
    segment, programs, http = settings.segment, settings.programs, settings.http
    wanted = segment.connections_max + programs.sessions_max + http.connections_max
    handshakes = 0 if segment.ssl is None else _PORTS * HandshakeLimits().total_max
    available = max(files - _FILES_RESERVED - handshakes, files // 2)
    if wanted <= available:
        return settings
    part = available / wanted
    log.warning(
        "the system allows %d open files (ulimit -n), too few for %d connections: the worker accepts %d",
        *(files, wanted, available),
    )
    return replace(
        settings,
        segment=replace(segment, connections_max=max(int(segment.connections_max * part), 1)),
        programs=replace(programs, sessions_max=max(int(programs.sessions_max * part), 1)),
        http=replace(http, connections_max=max(int(http.connections_max * part), 1)),
    )


def _with_data(data: Path) -> str:
    """A worker on an empty directory starts from scratch, which sources and sinks must not connect to by mistake: the
    hint warns of it.
    """
    return "; on another --data directory it would be empty" if (data / "journal").exists() else ""


def hint_of(error: OSError, data: Path) -> str:
    match error.errno:
        case errno.EADDRINUSE:
            return f"{PORT_TAKEN}: choose another port, or 0 for a free one."
        case errno.EADDRNOTAVAIL | errno.EACCES if error.filename is None:
            return "Choose an address of this machine with --host, and a port above 1023."
        case errno.ENOSPC | errno.EDQUOT:
            return f"Free space on the disk of {data}, and start the worker again{_with_data(data)}."
        case _ if _with_data(data):
            return f"Make {data} and everything in it writable for this user{_with_data(data)}."
        case _:
            return "Choose another --data directory: one that can be created and written."


def _run_in_loop(settings: WorkerSettings, place: Place) -> None:
    import uvloop

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        if place.bucket is None:
            for name, count in settings.programs.partitions.items():
                log.warning("source %r has one partition, not %d: a worker without --store has one shard", name, count)
            runner.run(_run(settings))
        elif place.wants is None:
            runner.run(_run_member(settings, place.bucket, place.link))
        else:
            runner.run(_run_host(settings, place.bucket, place.wants, place.log_file))


async def _run_host(settings: WorkerSettings, options: BucketOptions, wants: int, log_file: Path | None) -> None:
    from penstock.worker.host import Host  # here: other commands need neither its servers nor the object store

    host = Host(settings, options, wants, sys.argv[2:], log_file)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, host.stop)

    def ready(ports: dict[str, int]) -> None:
        _print(
            f"penstock worker is ready: sources on {settings.programs.host}:{ports['connector']}, "
            f"http on {settings.http_host}:{ports['http']}{_controller(settings, ports)}, "
            f"a host of the cluster {options.url}",
            settings.log_format,
        )

    await host.run(ready, _on_waiting(settings, options))
    _print("stopped: everything that was acknowledged is in the bucket", settings.log_format)


async def _run_member(settings: WorkerSettings, options: BucketOptions, link: LinkOptions | None) -> None:
    """Waits for the lease of the worker that has the shard, and serves as its standby meanwhile."""
    from penstock.worker.host_link import HostLink
    from penstock.worker.member import Member  # now: nothing but recovery is to be done after the take-over

    member = Member(settings, options, _on_waiting(settings, options), None if link is None else HostLink(link))
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, member.stop)
    has_owned = await member.run(lambda worker, ports: _print_ready(worker, settings, ports))
    text = "stopped: everything that was acknowledged is in the bucket"
    _print(text if has_owned else "stopped before it has taken over anything", settings.log_format)


def _on_waiting(settings: WorkerSettings, options: BucketOptions) -> "Callable[[OwnerSeen], None]":
    shown = set[str]()

    def show(waiting: "OwnerSeen") -> None:
        text = _waiting_text(waiting, options.url)
        about = "" if waiting.problem else waiting.owner
        if about not in shown:
            shown.add(about)
            _print(text, settings.log_format)

    return show


def _waiting_text(waiting: "OwnerSeen", url: str) -> str:
    """It begins as WAITING says."""
    if waiting.problem:
        return f"waiting for the object store: {waiting.problem}"
    where = waiting.addresses.get("http", "")
    return (
        f"waiting as a standby: worker {waiting.owner}{f' ({where})' if where else ''} has {url}. This one takes over "
        "when that one stops or is silent for 6 s; --take-over does it at once."
    )


async def _run(settings: WorkerSettings) -> None:
    from penstock.worker.worker import Worker  # here: other commands need neither its servers nor the kernels

    worker = Worker(settings)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, worker.stop)

    await worker.run(lambda ports: _print_ready(worker, settings, ports))
    _print("stopped: everything that was acknowledged is on disk", settings.log_format)


def _controller(settings: WorkerSettings, ports: Mapping[str, int]) -> str:
    return f", controller on {settings.segment.host}:{ports['controller']}" if "controller" in ports else ""


def _print_ready(worker: "Worker", settings: WorkerSettings, ports: dict[str, int]) -> None:
    store = worker.status().store
    _print(
        f"penstock worker is ready: sources on {settings.programs.host}:{ports['connector']}, "
        f"segments on {settings.segment.host}:{ports['segment']}, "
        f"http on {settings.http_host}:{ports['http']}{_controller(settings, ports)}",
        settings.log_format,
    )
    place = settings.data if store.bucket is None else store.bucket.url
    _print(
        f"data in {place}: {store.segments} segments, {store.live_bytes} bytes, "
        f"recovered in {store.recovery_seconds} s",
        settings.log_format,
    )
