"""The options of `penstock worker`."""

from contextlib import suppress
from enum import Enum
from pathlib import Path
from typing import Annotated, Any

import typer

from penstock.cli.texts import parse_size
from penstock.coordinator.machine.state import Retention
from penstock.core.durations import parse_duration_ms
from penstock.core.errors import RequestError
from penstock.core.logs import LogFormat, LogLevel
from penstock.ingest.settings import AckMode
from penstock.worker.settings import Redirect

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


NO_QUOTA = -1


def parse_quota(text: str | int) -> int:
    """For a typer option: a size, or `none`."""
    return NO_QUOTA if isinstance(text, str) and text.strip().lower() == "none" else parse_size(text)


_LIMITS = "Limits"
_DEPLOYMENTS = "Deployments"
_TLS = "TLS"
_SOURCES = "Sources"
_LOGS = "Logs"


class TimeUnit(Enum):
    S = "s"
    MS = "ms"
    US = "us"
    NS = "ns"


def _size(text: str) -> Any:
    return typer.Option(parser=parse_size, metavar="SIZE", help=text, rich_help_panel=_LIMITS)


def _port(text: str) -> Any:
    return typer.Option(min=0, max=65535, metavar="PORT", help=text)


def _source(text: str, **more: Any) -> Any:
    return typer.Option(help=text, rich_help_panel=_SOURCES, **more)


def _tls(text: str) -> Any:
    return typer.Option(help=text, rich_help_panel=_TLS)


DataOption = Annotated[Path, typer.Option(help="Directory of the journal; created if it does not exist.")]
HostOption = Annotated[
    str, typer.Option(help="Address that the connector and segment ports listen on; loopback by default.")
]
ConnectorPortOption = Annotated[int, _port("Port of the connector protocol, for sources; 0 picks a free one.")]
SegmentPortOption = Annotated[int, _port("Port of the segment protocol; 0 picks a free one.")]
HttpPortOption = Annotated[int, _port("Port of /health, /status, /metrics; 0 picks a free one.")]
ControllerPortOption = Annotated[
    int | None,
    typer.Option(
        min=0,
        max=65535,
        metavar="PORT",
        help="Port of a controller for Pravega's clients; 0 picks a free one. Default: none. Needs the extra pravega.",
    ),
]
CookieOption = Annotated[
    str, _source("The secret that a source must present.", envvar="PENSTOCK_COOKIE", metavar="TEXT")
]
AutoCreateOption = Annotated[bool, _source("Accept sources that are not known yet, or refuse them.")]
AckOption = Annotated[
    AckMode,
    _source(
        "When messages are acknowledged: once all pipelines that read them have completed their epoch, or once they "
        "are on disk.",
        metavar="checkpoint|durable",
    ),
]
EventTimeUnitOption = Annotated[TimeUnit, _source("Unit of the sources' event times: s, ms, us, ns.", metavar="UNIT")]
SuccessorOption = Annotated[
    str,
    _source(
        "Where sources are sent (RESTART) when this worker stops. Start the worker there afterwards, on the same data.",
        metavar="HOST:PORT",
    ),
]
EventTimeIngestOption = Annotated[bool, _source("An event time of 0 means the time of arrival.")]
WindowOption = Annotated[
    list[str] | None,
    _source(
        "What a source may have in flight, unless it announces a larger window; 4KiB to 8MiB. Default: 256KiB.",
        metavar="[NAME=]SIZE",
    ),
]
PartitionsOption = Annotated[
    list[str] | None,
    _source(
        "How many shards of a cluster the streams of this source are spread over; decided when it is first used.",
        metavar="NAME=N",
    ),
]
TlsCertOption = Annotated[Path | None, _tls("Certificate (PEM) of all ports; read again when it changes.")]
TlsKeyOption = Annotated[Path | None, _tls("Its private key (PEM).")]
TlsClientCaOption = Annotated[
    Path | None,
    _tls("Accept only clients with a certificate of this authority (mutual TLS). HTTP accepts tokens, too."),
]
AllowCallbacksOption = Annotated[
    bool,
    typer.Option(
        "--allow-callbacks",
        help="Let callback sinks run Python files in the worker: anyone who may deploy can then run code here.",
        rich_help_panel=_DEPLOYMENTS,
    ),
]
AllowExecOption = Annotated[
    bool,
    typer.Option(
        "--allow-exec",
        help="Let connectors of type exec run programs: anyone who may deploy can then run programs here.",
        rich_help_panel=_DEPLOYMENTS,
    ),
]
FileRootOption = Annotated[
    list[Path] | None,
    typer.Option(
        metavar="DIR",
        help="Folder in which connectors and sinks may use files; may be repeated. Default: none. Never DATA.",
        rich_help_panel=_DEPLOYMENTS,
    ),
]
RetentionOption = Annotated[
    Any,
    typer.Option(
        parser=parse_retention,
        metavar="HOW LONG",
        help="When data is deleted: once all pipelines are done with it (complete), never (keep), after a time (7d) "
        "or beyond a size (10GiB).",
        rich_help_panel=_LIMITS,
    ),
]
ChapterSizeOption = Annotated[Any, _size("Size of a journal file.")]
ReserveOption = Annotated[Any, _size("Disk kept for draining a full store.")]
SegmentQuotaOption = Annotated[Any, _size("Bytes that a segment may hold (default: no limit).")]
ConnectionsOption = Annotated[int, typer.Option(min=1, help="Connections at the same time.", rich_help_panel=_LIMITS)]
BlockSizeOption = Annotated[Any, _size("Largest append.")]
SourceQuotaOption = Annotated[
    Any,
    typer.Option(
        parser=parse_quota,
        metavar="SIZE|none",
        help="Bytes that a source's segments may hold, without what all pipelines have completed; none: no limit "
        "(default: 10GiB with --retention complete, otherwise none).",
        rich_help_panel=_LIMITS,
    ),
]
InFlightOption = Annotated[Any, _size("Bytes received from all sources that are not on disk yet.")]
SessionsOption = Annotated[
    int, typer.Option(min=1, help="Sources connected at the same time.", rich_help_panel=_LIMITS)
]
FrameSizeOption = Annotated[Any, _size("Largest frame of a source.")]
StreamsOption = Annotated[int, typer.Option(min=1, help="Open streams of one session.", rich_help_panel=_LIMITS)]
ShortCircuitOption = Annotated[
    bool,
    typer.Option(
        envvar="PENSTOCK_SHORT_CIRCUIT",
        help="Let Spark's tasks read the journal's files themselves: on this machine, if they run as the same user, "
        "and in the bucket, if they have credentials for it.",
    ),
]
LogFileOption = Annotated[
    Path | None, typer.Option(help="Log to this file instead of stderr; it rotates at 10 MiB.", rich_help_panel=_LOGS)
]
LogLevelOption = Annotated[
    LogLevel, typer.Option(help="What is logged; penstock log-level changes it at run time.", rich_help_panel=_LOGS)
]
LogFormatOption = Annotated[
    LogFormat, typer.Option(help="Lines for people, or JSON objects for programs.", rich_help_panel=_LOGS)
]
