"""`penstock worker`: run a worker until SIGTERM or Ctrl-C."""

import asyncio
import errno
import logging
import resource
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from enum import Enum
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from penstock.backup.contents import JOURNAL
from penstock.cli.dashboard_process import DashboardPortOption, dashboard_beside
from penstock.cli.event_times import (
    EventTimeOption,
    IdleTimeoutOption,
    MaxDisorderOption,
    WhenAllIdleOption,
    by_name,
    with_event_times,
)
from penstock.cli.texts import parse_size
from penstock.cli.worker_access import (
    CookieFileOption,
    HttpAllowHostOption,
    HttpHostOption,
    InsecureOption,
    TokenFileOption,
    check_exposure,
    read_cookie,
    tls_files,
    with_access,
)
from penstock.connectors.permissions import Permissions
from penstock.coordinator.machine.state import Retention
from penstock.coordinator.settings import CoordinatorSettings
from penstock.core import sizes
from penstock.core.address import Address
from penstock.core.durations import parse_duration_ms
from penstock.core.errors import RequestError, StoreFailed, WorkerFailed
from penstock.core.logs import LogFormat, LogLevel, log_line, set_up_logging
from penstock.core.platforms import cores, limitations
from penstock.core.tls_handshakes import HandshakeLimits
from penstock.ingest.settings import QUOTA_BYTES, AckMode, GatewaySettings, SourceSettings
from penstock.pravega.settings import ControllerSettings
from penstock.protocol.api.deployment import PARTITIONS_MAX
from penstock.protocol.connector.codec import FRAME_SIZE_CEILING
from penstock.protocol.connector.credits import FRAME_SIZE_FLOOR, WINDOW_BYTES
from penstock.protocol.connector.frames import EventTimeUnit
from penstock.segment_server.settings import ServerSettings
from penstock.store.settings import StoreSettings
from penstock.worker.certificates import TlsFiles
from penstock.worker.host_link import LinkOptions
from penstock.worker.ports_file import PORT_TAKEN, reachable
from penstock.worker.settings import STORE_FILE, BucketOptions, Redirect, WorkerSettings

if TYPE_CHECKING:
    from penstock.cluster.lease_state import OwnerSeen
    from penstock.worker.worker import Worker

# The object store on the command line.

_BUCKET = "Bucket"

StoreOption = Annotated[
    str | None,
    typer.Option(
        envvar="PENSTOCK_STORE",
        metavar="URL",
        help="Keep the journal in an object store: s3://BUCKET/PREFIX, gs://, az:// or file://. Credentials come from "
        "its usual environment variables and files.",
        rich_help_panel=_BUCKET,
    ),
]
CacheOption = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR",
        help="Local copies of what is in the bucket; deleted at every start. Default: DATA/cache.",
        rich_help_panel=_BUCKET,
    ),
]
CacheSizeOption = Annotated[
    Any,
    typer.Option(
        parser=parse_size,
        metavar="SIZE",
        help="Size of the cache of each shard, besides the open chapter.",
        rich_help_panel=_BUCKET,
    ),
]
ShardOption = Annotated[
    int | None,
    typer.Option(
        min=0,
        metavar="S",
        help="Serve only this shard, in this process, or wait for it as a standby.",
        rich_help_panel=_BUCKET,
    ),
]
ShardsOption = Annotated[
    int | None,
    typer.Option(
        min=0,
        metavar="N",
        help="How many shards this worker adds to the cluster, each in a process of its own; 0: it only takes over. "
        "Default: the number of cores.",
        show_default=False,
        rich_help_panel=_BUCKET,
    ),
]
TakeOverOption = Annotated[
    bool,
    typer.Option(
        "--take-over",
        help="Take over at once from the worker that has the bucket, without waiting for it to stop.",
        rich_help_panel=_BUCKET,
    ),
]


def bucket_options(
    store: str | None, cache: Path | None, cache_size: int, take_over: bool, data: Path, shard: int | None = None
) -> BucketOptions | None:
    if store is not None:
        return BucketOptions(store, cache or data / "cache", cache_size, take_over, shard or 0)
    if cache is not None or take_over or shard is not None:
        raise RequestError("--cache, --shard and --take-over are for a journal in a bucket", "Add --store URL.")
    if (data / STORE_FILE).exists() and not (data / JOURNAL).exists():
        url = (data / STORE_FILE).read_text().strip()
        raise RequestError(
            f"the journal of {data} is in {url}: without it this worker would start empty",
            f"Add --store {url}, or choose another --data directory.",
        )
    return None


AdvertiseOption = Annotated[
    str,
    typer.Option(
        metavar="HOST",
        help="The name or address under which sources and other workers reach this machine. Default: --host, or the "
        "machine's name if that is every address.",
        rich_help_panel=_BUCKET,
    ),
]
RedirectOption = Annotated[
    Redirect,
    typer.Option(
        metavar="auto|restart|splice",
        help="What a standby does with a source that does not know MIGRATE: send it to the owner (restart), pass its "
        "bytes on (splice), or send it, and pass on what comes back (auto).",
        rich_help_panel=_BUCKET,
    ),
]


# Retention on the command line: complete, keep, 7d, 10GiB.


def parse_retention(text: str | Retention) -> Retention:
    """For a typer option."""
    if isinstance(text, Retention):
        return text
    match text.strip().lower():
        case "complete":
            return Retention("complete")
        case "keep":
            return Retention("keep")
        case limit:
            return _limit(text, limit)


def _limit(text: str, limit: str) -> Retention:
    with suppress(RequestError):
        return Retention("time", parse_duration_ms(limit) * 1000)
    with suppress(typer.BadParameter):
        return Retention("size", parse_size(limit))
    raise typer.BadParameter(f"{text!r}: write complete, keep, a time like 7d, or a size like 10GiB")


_NO_QUOTA = -1


def parse_quota(text: str | int) -> int:
    """For a typer option: a size, or `none`."""
    return _NO_QUOTA if isinstance(text, str) and text.strip().lower() == "none" else parse_size(text)


log = logging.getLogger("penstock.worker")

_LIMITS = "Limits"
_DEPLOYMENTS = "Deployments"
_TLS = "TLS"
_SOURCES = "Sources"
_LOGS = "Logs"


def _option_size(default: str | None, text: str) -> Any:
    return typer.Option(default, parser=parse_size, metavar="SIZE", help=text, rich_help_panel=_LIMITS)


def _port(default: int, text: str) -> Any:
    return typer.Option(default, min=0, max=65535, metavar="PORT", help=text)


def _source(default: object, text: str, **more: Any) -> Any:
    return typer.Option(default, help=text, rich_help_panel=_SOURCES, **more)


def _tls(text: str) -> Any:
    return typer.Option(None, help=text, rich_help_panel=_TLS)


class TimeUnit(Enum):
    S = "s"
    MS = "ms"
    US = "us"
    NS = "ns"


def register(app: typer.Typer) -> None:
    app.command("worker")(worker)


def worker(
    data: Path = typer.Option(Path("penstock-data"), help="Directory of the journal; created if it does not exist."),
    store: StoreOption = None,
    cache: CacheOption = None,
    cache_size: CacheSizeOption = "1GiB",
    shards: ShardsOption = None,
    shard: ShardOption = None,
    take_over: TakeOverOption = False,
    advertise: AdvertiseOption = "",
    redirect: RedirectOption = Redirect.AUTO,
    host: str = typer.Option(
        "127.0.0.1", help="Address that the connector and segment ports listen on; loopback by default."
    ),
    connector_port: int = _port(7100, "Port of the connector protocol, for sources; 0 picks a free one."),
    segment_port: int = _port(7101, "Port of the segment protocol; 0 picks a free one."),
    http_port: int = _port(7102, "Port of /health, /status, /metrics; 0 picks a free one."),
    controller_port: int | None = typer.Option(
        None,
        min=0,
        max=65535,
        metavar="PORT",
        help="Port of a controller for Pravega's clients; 0 picks a free one. Default: none. Needs the extra pravega.",
    ),
    dashboard_port: DashboardPortOption = None,
    http_host: HttpHostOption = "127.0.0.1",
    http_allow_host: HttpAllowHostOption = None,
    token_file: TokenFileOption = None,
    insecure: InsecureOption = False,
    cookie: str = _source("", "The secret that a source must present.", envvar="PENSTOCK_COOKIE", metavar="TEXT"),
    cookie_file: CookieFileOption = None,
    auto_create: bool = _source(True, "Accept sources that are not known yet, or refuse them."),
    ack: AckMode = _source(
        AckMode.CHECKPOINT,
        "When messages are acknowledged: once all pipelines that read them have completed their epoch, or once they "
        "are on disk.",
        metavar="checkpoint|durable",
    ),
    event_time_unit: TimeUnit = _source(
        TimeUnit.MS, "Unit of the sources' event times: s, ms, us, ns.", metavar="UNIT"
    ),
    successor: str = _source(
        "",
        "Where sources are sent (RESTART) when this worker stops. Start the worker there afterwards, on the same data.",
        metavar="HOST:PORT",
    ),
    event_time_ingest: bool = _source(False, "An event time of 0 means the time of arrival."),
    window: list[str] | None = _source(
        None,
        "What a source may have in flight, unless it announces a larger window; 4KiB to 8MiB. Default: 256KiB.",
        metavar="[NAME=]SIZE",
    ),
    partitions: list[str] | None = _source(
        None,
        "How many shards of a cluster the streams of this source are spread over; decided when it is first used.",
        metavar="NAME=N",
    ),
    event_time: EventTimeOption = None,
    max_disorder: MaxDisorderOption = None,
    idle_timeout: IdleTimeoutOption = None,
    when_all_idle: WhenAllIdleOption = None,
    tls_cert: Path | None = _tls("Certificate (PEM) of all ports; read again when it changes."),
    tls_key: Path | None = _tls("Its private key (PEM)."),
    tls_client_ca: Path | None = _tls(
        "Accept only clients with a certificate of this authority (mutual TLS). HTTP accepts tokens, too."
    ),
    allow_callbacks: bool = typer.Option(
        False,
        "--allow-callbacks",
        help="Let callback sinks run Python files in the worker: anyone who may deploy can then run code here.",
        rich_help_panel=_DEPLOYMENTS,
    ),
    allow_exec: bool = typer.Option(
        False,
        "--allow-exec",
        help="Let connectors of type exec run programs: anyone who may deploy can then run programs here.",
        rich_help_panel=_DEPLOYMENTS,
    ),
    file_root: list[Path] | None = typer.Option(
        None,
        metavar="DIR",
        help="Folder in which connectors and sinks may use files; may be repeated. Default: none. Never DATA.",
        rich_help_panel=_DEPLOYMENTS,
    ),
    retention: Any = typer.Option(
        "complete",
        parser=parse_retention,
        metavar="HOW LONG",
        help="When data is deleted: once all pipelines are done with it (complete), never (keep), after a time (7d) "
        "or beyond a size (10GiB).",
        rich_help_panel=_LIMITS,
    ),
    chapter_size: int = _option_size("64MiB", "Size of a journal file."),
    reserve: int = _option_size("256MiB", "Disk kept for draining a full store."),
    segment_quota: int | None = _option_size(None, "Bytes that a segment may hold (default: no limit)."),
    connections: int = typer.Option(250, min=1, help="Connections at the same time.", rich_help_panel=_LIMITS),
    block_size: int = _option_size("9MiB", "Largest append."),
    source_quota: int | None = typer.Option(
        None,
        parser=parse_quota,
        metavar="SIZE|none",
        help="Bytes that a source's segments may hold, without what all pipelines have completed; none: no limit "
        "(default: 10GiB with --retention complete, otherwise none).",
        rich_help_panel=_LIMITS,
    ),
    in_flight: int = _option_size("256MiB", "Bytes received from all sources that are not on disk yet."),
    sessions: int = typer.Option(1000, min=1, help="Sources connected at the same time.", rich_help_panel=_LIMITS),
    frame_size: int = _option_size("4MiB", "Largest frame of a source."),
    streams: int = typer.Option(100_000, min=1, help="Open streams of one session.", rich_help_panel=_LIMITS),
    short_circuit: bool = typer.Option(
        True,
        envvar="PENSTOCK_SHORT_CIRCUIT",
        help="Let Spark's tasks read the journal's files themselves: on this machine, if they run as the same user, "
        "and in the bucket, if they have credentials for it.",
    ),
    log_file: Path | None = typer.Option(
        None, help="Log to this file instead of stderr; it rotates at 10 MiB.", rich_help_panel=_LOGS
    ),
    log_level: LogLevel = typer.Option(
        LogLevel.INFO, help="What is logged; penstock log-level changes it at run time.", rich_help_panel=_LOGS
    ),
    log_format: LogFormat = typer.Option(
        LogFormat.TEXT, help="Lines for people, or JSON objects for programs.", rich_help_panel=_LOGS
    ),
) -> None:
    """Run a worker: the durable store of segments and its servers.

    Its ports are printed, and written to DATA/ports.json. On SIGTERM or
    Ctrl-C it makes durable and acknowledges what it has received, then stops.
    """
    _check_sizes(chapter_size, block_size, frame_size, in_flight)
    tls = tls_files(tls_cert, tls_key, tls_client_ca)
    if redirect is Redirect.SPLICE and tls is not None:
        raise RequestError("--redirect splice is not possible with TLS", "Use --redirect restart.")
    unit = EventTimeUnit[event_time_unit.name]
    connector = SourceSettings(
        ack=ack,
        event_time_unit=unit,
        event_time_ingest=event_time_ingest,
        quota_bytes=source_quota_bytes(source_quota, retention),
    )
    connector, named = with_event_times(
        connector, max_disorder or [], idle_timeout or [], when_all_idle or [], event_time or []
    )
    connector, named = with_windows(connector, named, window or [])
    named = with_partitions(connector, named, partitions or [])
    limits = StoreSettings(chapter_bytes=chapter_size, reserve_bytes=reserve, segment_quota_bytes=segment_quota)
    segment = ServerSettings(host=host, port=segment_port)
    segment = replace(segment, connections_max=connections, block_bytes_max=block_size, short_circuit=short_circuit)
    secret = read_cookie(cookie, cookie_file)
    gateway = GatewaySettings(host=host, port=connector_port, cookie=secret, source=connector)
    gateway = replace(gateway, auto_create=auto_create, sessions_max=sessions, successor=successor, sources=named)
    gateway = replace(gateway, frame_bytes_max=frame_size, streams_per_session_max=streams)
    gateway = replace(gateway, in_flight_bytes_max=in_flight)
    coordinator = CoordinatorSettings(retention=retention)
    servers = WorkerSettings(data=data, store=limits, segment=segment, gateway=gateway, coordinator=coordinator)
    servers = replace(servers, advertise=advertise, redirect=redirect)
    if controller_port is not None:
        servers = replace(servers, controller=controller_settings(host, controller_port, advertise))
    hosts = frozenset(http_allow_host or ())
    servers = replace(servers, http_host=http_host, http_port=http_port, http_allowed_hosts=hosts)
    if not insecure:
        check_exposure(servers, tls)
    if not allow_callbacks:
        _import_nothing_from_here()
    own = (token_file, cookie_file, tls_cert, tls_key, tls_client_ca, log_file)
    permissions = Permissions.of(
        data,
        tuple(file_root or ()),
        callbacks=allow_callbacks,
        exposed=insecure,
        own_files=own,
        own_store=store or "",
        programs=allow_exec,
    )
    set_up_logging(log_file, log_level, log_format)
    link = LinkOptions.from_environment()
    for text in () if link is not None else limitations():
        log.warning("on this platform: %s", text)
    wants = None if link is not None else shards_wanted(store, shards, shard, take_over=take_over)
    bucket = bucket_options(store, cache, cache_size, take_over and link is None, data, shard)
    if bucket is not None and link is not None:
        bucket = replace(bucket, host=link.host)
        servers = with_segment_port_of_host(servers, link)
    servers = replace(servers, permissions=permissions, log_format=log_format)
    with dashboard_beside(
        dashboard_port if link is None else None, "--data", str(data)
    ):  # of shards: their host has one
        _serve(servers, tls, token_file, _Place(bucket, wants, link, log_file))


def controller_settings(host: str, port: int, advertise: str) -> ControllerSettings:
    """Raises RequestError if this worker cannot have a controller."""
    if any(find_spec(name) is None for name in ("grpc", "google")) or find_spec("google.protobuf") is None:
        raise RequestError("--controller-port needs gRPC", "Install it: pip install 'penstock-streams[pravega]'")
    return ControllerSettings(host=host, port=port, segment_host=advertise or reachable(host))


def with_segment_port_of_host(settings: WorkerSettings, link: LinkOptions) -> WorkerSettings:
    """Pravega's clients keep the address of a reader group's table as long as they run. A host's address stays valid
    wherever the shard moves.
    """
    if settings.controller is None or not link.segment:
        return settings
    host = Address.parse(link.segment)
    return replace(settings, controller=replace(settings.controller, segment_host=host.host, segment_port=host.port))


class _Place(NamedTuple):
    """What a process is: a worker on a disk, a host, or a process of one shard."""

    bucket: BucketOptions | None
    wants: int | None
    """Of a host."""
    link: LinkOptions | None
    """To the host that has started it."""
    log_file: Path | None

    def access_directory(self, data: Path) -> Path:
        return data if self.link is None else Path(self.link.data)


def shards_wanted(store: str | None, shards: int | None, shard: int | None, *, take_over: bool) -> int | None:
    """How many shards a host wants; None for a process that is not a host. Raises RequestError."""
    if store is None:
        if shards is not None:
            raise RequestError(
                "--shards is for a journal in a bucket: a disk has one shard", "Add --store URL, or leave --shards out."
            )
        return None
    if shard is not None:
        if shards is not None:
            raise RequestError("--shard and --shards exclude each other", "Use one of them.")
        return None
    if take_over:
        raise RequestError(
            "--take-over is for the process of one shard: workers of a cluster agree about their shards",
            "Add --shard S, or leave --take-over out.",
        )
    return cores() if shards is None else shards


def _import_nothing_from_here() -> None:
    """`python -m` puts the working directory first on the path: a connector that may write files there could give the
    worker code to import.
    """
    sys.path[:] = [entry for entry in sys.path if Path(entry).resolve() != Path.cwd()]


def with_windows(
    default: SourceSettings, named: Mapping[str, SourceSettings], given: Sequence[str]
) -> tuple[SourceSettings, dict[str, SourceSettings]]:
    """The settings for all sources, and those for named sources. Raises RequestError."""
    windows = by_name("--window", given, _window_bytes)
    default = replace(default, window_bytes=windows.pop("", default.window_bytes))
    return default, {
        name: replace(named.get(name, default), window_bytes=windows.get(name, default.window_bytes))
        for name in named.keys() | windows.keys()
    }


def with_partitions(
    default: SourceSettings, named: Mapping[str, SourceSettings], given: Sequence[str]
) -> dict[str, SourceSettings]:
    """The settings for named sources. Raises RequestError."""
    counts = by_name("--partitions", given, _partitions)
    if "" in counts:
        raise RequestError(
            "--partitions needs the name of a source: most sources have one", "Write --partitions orders=4."
        )
    return dict(named) | {name: replace(named.get(name, default), partitions=count) for name, count in counts.items()}


def _partitions(text: str) -> int:
    if not (text.isascii() and text.isdecimal()) or not 1 <= int(text) <= PARTITIONS_MAX:
        raise RequestError(f"{text!r} is not a valid number of partitions", f"Choose 1 to {PARTITIONS_MAX}.")
    return int(text)


def _window_bytes(text: str) -> int:
    size = sizes.parse_size(text)
    if not FRAME_SIZE_FLOOR <= size <= WINDOW_BYTES:
        raise RequestError(f"{text!r} is too small or too large", "Choose a window from 4KiB to 8MiB.")
    return size


def source_quota_bytes(given: int | None, retention: Retention) -> int | None:
    """With retention by time or size, or with everything kept, retention is the limit that was chosen."""
    if given is not None:
        return None if given == _NO_QUOTA else given
    return QUOTA_BYTES if retention.mode == "complete" else None


def _check_sizes(chapter_size: int, block_size: int, frame_size: int, in_flight: int) -> None:
    if not 64 * 1024 <= chapter_size <= 2**40 or not 0 < block_size < 2**24 - 1024:
        raise RequestError("--chapter-size is 64KiB or more, --block-size less than 16MiB")
    if not 64 * 1024 <= frame_size <= FRAME_SIZE_CEILING:
        raise RequestError("--frame-size is from 64KiB to 15MiB: a stored event must fit into a message")
    if in_flight < 2 * frame_size:
        raise RequestError("--in-flight is at least twice --frame-size: a frame must fit into it beside others")


def _serve(settings: WorkerSettings, tls: TlsFiles | None, token_file: Path | None, place: _Place) -> None:
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
        raise RequestError(f"the worker cannot start: {error}", _hint(error, settings.data)) from None


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
    segment, gateway, http = settings.segment, settings.gateway, settings.http
    wanted = segment.connections_max + gateway.sessions_max + http.connections_max
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
        gateway=replace(gateway, sessions_max=max(int(gateway.sessions_max * part), 1)),
        http=replace(http, connections_max=max(int(http.connections_max * part), 1)),
    )


def _with_data(data: Path) -> str:
    """A worker on an empty directory starts from scratch, which sources and sinks must not connect to by mistake: the
    hint warns of it.
    """
    return "; on another --data directory it would be empty" if (data / "journal").exists() else ""


def _hint(error: OSError, data: Path) -> str:
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


def _run_in_loop(settings: WorkerSettings, place: _Place) -> None:
    import uvloop

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        if place.bucket is None:
            for name, count in settings.gateway.partitions.items():
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
            f"penstock worker is ready: sources on {settings.gateway.host}:{ports['connector']}, "
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
        f"penstock worker is ready: sources on {settings.gateway.host}:{ports['connector']}, "
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
