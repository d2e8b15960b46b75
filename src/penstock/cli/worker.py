"""`penstock worker`: run a worker until SIGTERM or Ctrl-C."""

import logging
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

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
from penstock.cli.worker_access import (
    CookieFileOption,
    HttpAllowHostOption,
    HttpHostOption,
    InsecureOption,
    TokenFileOption,
    check_exposure,
    read_cookie,
    tls_files,
)
from penstock.cli.worker_options import (
    NO_QUOTA,
    AckOption,
    AdvertiseOption,
    AllowCallbacksOption,
    AllowExecOption,
    AutoCreateOption,
    BlockSizeOption,
    CacheOption,
    CacheSizeOption,
    ChapterSizeOption,
    ConnectionsOption,
    ConnectorPortOption,
    ControllerPortOption,
    CookieOption,
    DataOption,
    EventTimeIngestOption,
    EventTimeUnitOption,
    FileRootOption,
    FrameSizeOption,
    HostOption,
    HttpPortOption,
    InFlightOption,
    LogFileOption,
    LogFormatOption,
    LogLevelOption,
    PartitionsOption,
    RedirectOption,
    ReserveOption,
    RetentionOption,
    SegmentPortOption,
    SegmentQuotaOption,
    SessionsOption,
    ShardOption,
    ShardsOption,
    ShortCircuitOption,
    SourceQuotaOption,
    StoreOption,
    StreamsOption,
    SuccessorOption,
    TakeOverOption,
    TimeUnit,
    TlsCertOption,
    TlsClientCaOption,
    TlsKeyOption,
    WindowOption,
)
from penstock.cli.worker_process import Place, serve
from penstock.connectors.permissions import Permissions
from penstock.coordinator.machine.state import Retention
from penstock.coordinator.settings import CoordinatorSettings
from penstock.core import sizes
from penstock.core.address import Address
from penstock.core.errors import RequestError
from penstock.core.logs import LogFormat, LogLevel, set_up_logging
from penstock.core.platforms import cores, limitations
from penstock.ingest.settings import QUOTA_BYTES, AckMode, ProgramServerSettings, SourceSettings
from penstock.pravega.settings import ControllerSettings
from penstock.protocol.api.deployment import PARTITIONS_MAX
from penstock.protocol.connector.codec import FRAME_SIZE_CEILING
from penstock.protocol.connector.credits import FRAME_SIZE_FLOOR, WINDOW_BYTES
from penstock.protocol.connector.frames import EventTimeUnit
from penstock.segment_server.settings import ServerSettings
from penstock.store.settings import StoreSettings
from penstock.worker.host_link import LinkOptions
from penstock.worker.ports_file import reachable
from penstock.worker.settings import STORE_FILE, BucketOptions, Redirect, WorkerSettings

log = logging.getLogger("penstock.worker")


def register(app: typer.Typer) -> None:
    app.command("worker")(worker)


def worker(
    data: DataOption = Path("penstock-data"),
    store: StoreOption = None,
    cache: CacheOption = None,
    cache_size: CacheSizeOption = "1GiB",
    shards: ShardsOption = None,
    shard: ShardOption = None,
    take_over: TakeOverOption = False,
    advertise: AdvertiseOption = "",
    redirect: RedirectOption = Redirect.AUTO,
    host: HostOption = "127.0.0.1",
    connector_port: ConnectorPortOption = 7100,
    segment_port: SegmentPortOption = 7101,
    http_port: HttpPortOption = 7102,
    controller_port: ControllerPortOption = None,
    dashboard_port: DashboardPortOption = None,
    http_host: HttpHostOption = "127.0.0.1",
    http_allow_host: HttpAllowHostOption = None,
    token_file: TokenFileOption = None,
    insecure: InsecureOption = False,
    cookie: CookieOption = "",
    cookie_file: CookieFileOption = None,
    auto_create: AutoCreateOption = True,
    ack: AckOption = AckMode.CHECKPOINT,
    event_time_unit: EventTimeUnitOption = TimeUnit.MS,
    successor: SuccessorOption = "",
    event_time_ingest: EventTimeIngestOption = False,
    window: WindowOption = None,
    partitions: PartitionsOption = None,
    event_time: EventTimeOption = None,
    max_disorder: MaxDisorderOption = None,
    idle_timeout: IdleTimeoutOption = None,
    when_all_idle: WhenAllIdleOption = None,
    tls_cert: TlsCertOption = None,
    tls_key: TlsKeyOption = None,
    tls_client_ca: TlsClientCaOption = None,
    allow_callbacks: AllowCallbacksOption = False,
    allow_exec: AllowExecOption = False,
    file_root: FileRootOption = None,
    retention: RetentionOption = "complete",
    chapter_size: ChapterSizeOption = "64MiB",
    reserve: ReserveOption = "256MiB",
    segment_quota: SegmentQuotaOption = None,
    connections: ConnectionsOption = 250,
    block_size: BlockSizeOption = "9MiB",
    source_quota: SourceQuotaOption = None,
    in_flight: InFlightOption = "256MiB",
    sessions: SessionsOption = 1000,
    frame_size: FrameSizeOption = "4MiB",
    streams: StreamsOption = 100_000,
    short_circuit: ShortCircuitOption = True,
    log_file: LogFileOption = None,
    log_level: LogLevelOption = LogLevel.INFO,
    log_format: LogFormatOption = LogFormat.TEXT,
) -> None:
    """Run a worker: the durable store of segments and its servers.

    Its ports are printed, and written to DATA/ports.json. On SIGTERM or
    Ctrl-C it makes durable and acknowledges what it has received, then stops.
    """
    _check_sizes(chapter_size, block_size, frame_size, in_flight)
    tls = tls_files(tls_cert, tls_key, tls_client_ca)
    if redirect is Redirect.SPLICE and tls is not None:
        raise RequestError("--redirect splice is not possible with TLS", "Use --redirect restart.")
    connector = SourceSettings(
        ack=ack,
        event_time_unit=EventTimeUnit[event_time_unit.name],
        event_time_ingest=event_time_ingest,
        quota_bytes=source_quota_bytes(source_quota, retention),
    )
    connector, named = with_event_times(
        connector, max_disorder or [], idle_timeout or [], when_all_idle or [], event_time or []
    )
    connector, named = with_windows(connector, named, window or [])
    settings = WorkerSettings(
        data=data,
        store=StoreSettings(chapter_bytes=chapter_size, reserve_bytes=reserve, segment_quota_bytes=segment_quota),
        segment=ServerSettings(
            host=host,
            port=segment_port,
            connections_max=connections,
            block_bytes_max=block_size,
            short_circuit=short_circuit,
        ),
        programs=ProgramServerSettings(
            host=host,
            port=connector_port,
            cookie=read_cookie(cookie, cookie_file),
            source=connector,
            sources=with_partitions(connector, named, partitions or []),
            auto_create=auto_create,
            successor=successor,
            sessions_max=sessions,
            frame_bytes_max=frame_size,
            streams_per_session_max=streams,
            in_flight_bytes_max=in_flight,
        ),
        coordinator=CoordinatorSettings(retention=retention),
        controller=None if controller_port is None else controller_settings(host, controller_port, advertise),
        advertise=advertise,
        redirect=redirect,
        http_host=http_host,
        http_port=http_port,
        http_allowed_hosts=frozenset(http_allow_host or ()),
        log_format=log_format,
        permissions=Permissions.of(
            data,
            tuple(file_root or ()),
            callbacks=allow_callbacks,
            exposed=insecure,
            own_files=(token_file, cookie_file, tls_cert, tls_key, tls_client_ca, log_file),
            own_store=store or "",
            programs=allow_exec,
        ),
    )
    if not insecure:
        check_exposure(settings, tls)
    if not allow_callbacks:
        _import_nothing_from_here()
    set_up_logging(log_file, log_level, log_format)
    link = LinkOptions.from_environment()
    if link is None:
        for text in limitations():
            log.warning("on this platform: %s", text)
        place = Place(
            wants=shards_wanted(store, shards, shard, take_over=take_over),
            bucket=bucket_options(store, cache, cache_size, take_over, data, shard),
            link=None,
            log_file=log_file,
        )
    else:  # a process of a shard, with the options of its host
        bucket = bucket_options(store, cache, cache_size, False, data, shard)
        bucket = None if bucket is None else replace(bucket, host=link.host)
        place = Place(bucket, wants=None, link=link, log_file=log_file)
        settings = with_segment_port_of_host(settings, link)
    with dashboard_beside(dashboard_port if link is None else None, "--data", str(data)):  # a host's, for its shards
        serve(settings, tls, token_file, place)


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
        return None if given == NO_QUOTA else given
    return QUOTA_BYTES if retention.mode == "complete" else None


def _check_sizes(chapter_size: int, block_size: int, frame_size: int, in_flight: int) -> None:
    if not 64 * 1024 <= chapter_size <= 2**40 or not 0 < block_size < 2**24 - 1024:
        raise RequestError("--chapter-size is 64KiB or more, --block-size less than 16MiB")
    if not 64 * 1024 <= frame_size <= FRAME_SIZE_CEILING:
        raise RequestError("--frame-size is from 64KiB to 15MiB: a stored event must fit into a message")
    if in_flight < 2 * frame_size:
        raise RequestError("--in-flight is at least twice --frame-size: a frame must fit into it beside others")
