"""Types of connectors and of interceptors by their names: Penstock's own, and those of other packages by entry points.

A third party's package names its types in its pyproject.toml:

    [project.entry-points."penstock.connectors"]
    my-type = "my_package.my_module:MyConnector"
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from types import MappingProxyType
from typing import Any, TypeVar

from pydantic import ValidationError

from penstock.connectors.api import Connector, Options, paths_in
from penstock.connectors.interceptors.api import Incoming, Interceptor, OutgoingInterceptor
from penstock.connectors.interceptors.chain import IncomingChain, OutgoingChain
from penstock.connectors.permissions import UNLIMITED, Permissions
from penstock.connectors.secrets import Mask, PlainOnly, resolve
from penstock.core.errors import RequestError
from penstock.core.plugins import NotInstalled as NotInstalled
from penstock.core.plugins import Registry
from penstock.protocol.api.deployment import InterceptorSpec

_TYPES = "penstock.connectors."
_INTERCEPTORS = "penstock.connectors.interceptors."

_MODULES_OF_EXTRAS = {
    "ws": ("websockets",),
    "http": ("httpx", "httpx_sse"),
    "kafka": ("confluent_kafka",),
    "nats": ("nats",),
    "mqtt": ("paho",),
    "redis": ("redis",),
    "amqp": ("aio_pika",),
    "sql": ("sqlalchemy",),
    "otlp": ("grpc", "opentelemetry.proto"),
    "cron": ("cronsim",),
    "email": ("aiosmtplib",),
    "postgres": ("psycopg",),
    "parquet": ("pyarrow",),
    "delta": ("deltalake", "pyarrow"),
    "iceberg": ("pyiceberg", "sqlalchemy", "pyarrow"),
}
"""The modules that each of Penstock's extras installs and a type needs."""


CONNECTORS: Registry[Connector[Any]] = Registry(
    "connector type",
    {
        "bench": _TYPES + "load_test:Bench",
        "callback": _TYPES + "callback:Callback",
        "connector-protocol": _TYPES + "connector_protocol.connector:ConnectorProtocol",
        "cron": _TYPES + "cron:Cron",
        "delta": _TYPES + "delta.connector:Delta",
        "directory": _TYPES + "directory.connector:Directory",
        "email": _TYPES + "email:Email",
        "exec": _TYPES + "exec:Exec",
        "file": _TYPES + "file.connector:File",
        "http-client": _TYPES + "http_client:HttpClient",
        "http-server": _TYPES + "http_server.connector:HttpServer",
        "iceberg": _TYPES + "iceberg.connector:Iceberg",
        "kafka": _TYPES + "kafka.connector:Kafka",
        "metronome": _TYPES + "metronome:Metronome",
        "mqtt": _TYPES + "mqtt.connector:Mqtt",
        "nats": _TYPES + "nats.connector:Nats",
        "null": _TYPES + "null:Null",
        "otlp": _TYPES + "otlp.connector:Otlp",
        "parquet": _TYPES + "parquet.connector:Parquet",
        "postgres": _TYPES + "postgres.connector:Postgres",
        "rabbitmq": _TYPES + "rabbitmq:RabbitMq",
        "redis": _TYPES + "redis.connector:RedisStreams",
        "segment": _TYPES + "segment:Segment",
        "sql": _TYPES + "sql.connector:Sql",
        "sqlite": _TYPES + "sqlite.connector:Sqlite",
        "sse-client": _TYPES + "sse_client:SseClient",
        "sse-server": _TYPES + "sse_server:SseServer",
        "stdio": _TYPES + "stdio:Stdio",
        "syslog": _TYPES + "syslog:Syslog",
        "tcp-client": _TYPES + "tcp_client:TcpClient",
        "tcp-server": _TYPES + "tcp_server:TcpServer",
        "udp-client": _TYPES + "udp:UdpClient",
        "udp-server": _TYPES + "udp:UdpServer",
        "unix-client": _TYPES + "unix_sockets:UnixClient",
        "unix-server": _TYPES + "unix_sockets:UnixServer",
        "webhook-client": _TYPES + "webhook.client:WebhookClient",
        "webhook-server": _TYPES + "webhook.server:WebhookServer",
        "ws-client": _TYPES + "ws_client:WsClient",
        "ws-server": _TYPES + "ws_server:WsServer",
    },
    "penstock.connectors",
)

SCHEMES: Mapping[str, str] = MappingProxyType(
    {
        "connector": "connector-protocol",
        "http": "http-client",
        "https": "http-client",
        "postgresql": "postgres",
        "stdout": "stdio",
        "tcp": "tcp-client",
        "udp": "udp-client",
        "ws": "ws-client",
        "wss": "ws-client",
    }
)
"""For the URLs of sinks, if the scheme is not the type's own name."""

INTERCEPTORS: Registry[Interceptor[Any]] = Registry(
    "interceptor",
    {
        "base64": _INTERCEPTORS + "base64_text:Base64",
        "chunk": _INTERCEPTORS + "pieces:Chunk",
        "collect": _INTERCEPTORS + "pieces:Collect",
        "compress": _INTERCEPTORS + "compression:Compress",
        "decompress": _INTERCEPTORS + "compression:Decompress",
        "decrypt": _INTERCEPTORS + "encryption:Decrypt",
        "encrypt": _INTERCEPTORS + "encryption:Encrypt",
        "gelf-chunking": _INTERCEPTORS + "gelf_chunking:GelfChunking",
        "ingest-timestamp": _INTERCEPTORS + "records:IngestTimestamp",
        "join": _INTERCEPTORS + "join:Join",
        "length-prefixed": _INTERCEPTORS + "length_prefixed:LengthPrefixed",
        "regex-extract": _INTERCEPTORS + "records:RegexExtract",
        "remove-empty": _INTERCEPTORS + "records:RemoveEmpty",
        "split": _INTERCEPTORS + "split:Split",
    },
    "penstock.interceptors",
)


def require(type_: type[Connector[Any]]) -> None:
    """Raises NotInstalled, with the command that installs what is missing."""
    extra = type_.about.extra
    missing = [module for module in _MODULES_OF_EXTRAS.get(extra, ()) if not _is_installed(module)]
    if missing:
        raise NotInstalled(
            f"the connector type {type_.about.name} needs {', '.join(missing)}, which is not installed here",
            f"Install it where the worker runs: pip install 'penstock-streams[{extra}]'",
        )


def types_of_every_worker() -> str:
    """For messages: the types whose connectors every worker of a cluster can listen with."""
    found = []
    for name in CONNECTORS.names():
        with suppress(RequestError):  # a broken package
            found += [name] if CONNECTORS.get(name).about.capabilities.every_worker else []
    return ", ".join(found)


def _is_installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # not even the package that contains it
        return False


# From the specs of a deployment to live connectors and chains of interceptors.

O = TypeVar("O", bound=Options)  # noqa: E741  options


def parse_options(
    model: type[O],
    config: Mapping[str, Any],
    of: str,
    permissions: Permissions = UNLIMITED,
    mask: Mask | None = None,
) -> O:
    """The options, with all references resolved; `mask` gets their values. Raises RequestError with all mistakes, but
    without values, which may be secret.
    """
    given = resolve(dict(config), permissions=permissions, mask=mask)
    try:
        return model.model_validate(given)
    except ValidationError as error:
        mistakes = "; ".join(_mistakes(error, has_secrets=given != config))
        raise RequestError(f"{of}: {mistakes}", f"Look at its options: penstock connectors {of}") from None


def _mistakes(error: ValidationError, *, has_secrets: bool) -> Iterator[str]:
    for one in error.errors(include_input=False, include_url=False):
        own = one["type"] in ("value_error", "assertion_error")  # its message may contain the value
        hidden = has_secrets and own and not isinstance(one.get("ctx", {}).get("error"), PlainOnly)
        where = ".".join(map(str, one["loc"])) or "config"
        yield f"{where}: {'invalid value (hidden: it may be a secret)' if hidden else one['msg']}"


def make_connector(
    type_name: str, config: Mapping[str, Any], permissions: Permissions = UNLIMITED, mask: Mask | None = None
) -> Connector[Any]:
    """Raises RequestError if the type is unknown, a package is missing, or the options are invalid or not permitted."""
    type_ = CONNECTORS.get(type_name)
    require(type_)
    mask = Mask() if mask is None else mask
    options = parse_options(type_.about.options, config, type_name, permissions, mask)
    return permitted(type_, options, permissions, mask)


def permitted(type_: type[Connector[Any]], options: Options, permissions: Permissions, mask: Mask) -> Connector[Any]:
    """A connector within these permissions. Raises NotPermitted, a RequestError."""
    with mask.errors():
        type_.check_permitted(options, permissions)
        connector = type_(options)
    connector.permissions, connector.mask = permissions, mask
    return connector


@dataclass(frozen=True, slots=True)
class Chains:
    """The interceptors of one connector: a new chain for each of its streams."""

    towards_us: tuple[Interceptor[Any], ...] = ()
    towards_peer: tuple[Interceptor[Any], ...] = ()
    messages: bool = False
    """Whether what the connector sends at once is a whole message, and not any part of a stream of bytes."""

    @property
    def takes_messages(self) -> bool:
        """Whether the first interceptor must get a message whole."""
        return self.messages and bool(self.towards_us) and not self.towards_us[0].takes_parts

    def incoming(self, *, resumes: bool = False, position: int = 0) -> IncomingChain:
        """See IncomingChain."""
        stages, framed = [], self.messages
        for one in self.towards_us:
            stages.append(_incoming(one, framed))
            framed = framed or one.cuts
        return IncomingChain(stages, resumes=resumes, position=position)

    def outgoing(self) -> OutgoingChain:
        return OutgoingChain([_outgoing(one) for one in self.towards_peer])


def make_chains(
    interceptors_in: Sequence[InterceptorSpec],
    interceptors_out: Sequence[InterceptorSpec],
    permissions: Permissions = UNLIMITED,
    mask: Mask | None = None,
    *,
    messages: bool = False,
) -> Chains:
    """Raises RequestError if an interceptor is unknown, does not support this direction, needs records where there are
    none yet, needs a package that is missing, or has invalid options. `messages`: see Chains.
    """
    chains = Chains(
        tuple(_interceptor(spec, permissions, mask) for spec in interceptors_in),
        tuple(_interceptor(spec, permissions, mask) for spec in interceptors_out),
        messages,
    )
    chains.incoming()
    chains.outgoing()
    return chains


def _interceptor(spec: InterceptorSpec, permissions: Permissions, mask: Mask | None) -> Interceptor[Any]:
    type_ = INTERCEPTORS.get(spec.type)
    options = parse_options(type_.about.options, spec.config, spec.type, permissions, mask)
    for path in paths_in(options):
        permissions.check_path(path)
    return type_(options)


def _incoming(interceptor: Interceptor[Any], framed: bool) -> Incoming:
    if interceptor.needs_records and not framed:
        raise RequestError(
            f"{interceptor.about.name} works on whole records, and here it would get any part of a stream of bytes",
            "Put an interceptor before it that cuts records: split, length-prefixed or chunk.",
        )
    stage = interceptor.incoming(framed=framed)
    if stage is None:
        raise RequestError(
            f"{interceptor.about.name} cannot be used under `interceptors: in`", "It works on the way out only."
        )
    return stage


def _outgoing(interceptor: Interceptor[Any]) -> OutgoingInterceptor:
    stage = interceptor.outgoing()
    if stage is None:
        raise RequestError(
            f"{interceptor.about.name} cannot be used under `interceptors: out`", "It works on the way in only."
        )
    return stage
