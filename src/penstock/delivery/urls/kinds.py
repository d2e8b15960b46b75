"""The kinds of sinks, by the schemes of their URLs. What a kind needs is imported when a sink of it is looked at."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from types import MappingProxyType
from typing import Any
from urllib.parse import SplitResult

from penstock.connectors.sink_api import FollowingSink, VotingSink
from penstock.connectors.tables import RowSchema, SchemaOf
from penstock.connectors.threaded import Threaded
from penstock.coordinator.delivery_messages import TableDdl
from penstock.core.errors import RequestError
from penstock.core.types import Guarantee
from penstock.delivery.urls import places as url_places
from penstock.delivery.urls.options import Option, options_of
from penstock.delivery.urls.places import Place

Make = Callable[[type[Any], Any, str, SchemaOf], VotingSink | FollowingSink]
"""Of the sink's class, its options, `PIPELINE/SINK`, and what the rows hold that it is given."""


HOSTED = "hosted"
"""Of connectors' ports `in`: who hosts them gives the sinks."""


class NotInstalled(RequestError):
    """What a kind of sink needs is not here. It may be elsewhere, where the worker runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Extra:
    """What must be installed for a kind, beside Penstock itself."""

    module: str
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    name: str
    schemes: tuple[str, ...]
    written: str
    """The URL without its options, for people."""
    about: str
    guarantee: Guarantee
    votes: bool
    options_class: str
    """As `module:Class`, in this package."""
    sink_class: str
    place: Callable[[SplitResult], Place]
    fixed: tuple[str, ...]
    """The fields of the options that `place` says."""
    make: Make
    prefix: str = ""
    """Of our options in the query."""
    extra: Extra | None = None
    credentials: str = ""
    """Where a password belongs."""
    ddl: str = ""
    """Of a kind with tables: what tells how one is made to fit, as `module:function`, in this package."""

    def options_type(self) -> type[Any]:
        """Raises NotInstalled."""
        self.check_installed()
        found: type[Any] = _imported(self.options_class)
        return found

    def sink_type(self) -> type[Any]:
        """Raises NotInstalled."""
        self.check_installed()
        found: type[Any] = _imported(self.sink_class)
        return found

    def describe(self, options: Any, schema: RowSchema) -> TableDdl:
        """The statements that make its table fit. Opens the database, and raises what that does."""
        self.check_installed()
        described: TableDdl = _imported(self.ddl)(options, schema)
        return described

    def options(self) -> list[Option]:
        return options_of(self.options_type(), self.fixed, self.prefix)

    def check_installed(self) -> None:
        """Raises NotInstalled."""
        if self.extra is not None and find_spec(self.extra.module) is None:
            raise NotInstalled(
                f"a {self.name} sink needs {self.extra.module}, not installed here",
                f"pip install 'penstock-streams[{self.extra.name}]', where the worker runs",
            )


def _imported(name: str) -> Any:
    module, _, attribute = name.partition(":")
    return getattr(import_module(f"penstock.delivery.{module}"), attribute)


def _file(sink: type[Any], options: Any, name: str, _: SchemaOf) -> VotingSink:
    return Threaded(sink(options), name)


def _sqlite(sink: type[Any], options: Any, name: str, schema: SchemaOf) -> VotingSink:
    return Threaded(sink(options, schema), name)


def _postgres(sink: type[Any], options: Any, name: str, schema: SchemaOf) -> VotingSink:
    return Threaded(sink(options, name, schema), name)


def _connector(sink: type[Any], options: Any, name: str, _: SchemaOf) -> VotingSink:
    made: VotingSink = sink(options, options.instance or name)
    return made


def _following(sink: type[Any], options: Any, name: str, _: SchemaOf) -> FollowingSink:
    made: FollowingSink = sink(options, name)
    return made


KINDS = (
    Kind(
        name="connector",
        schemes=("connector",),
        written="connector://HOST:PORT",
        about="a program that speaks the connector protocol, such as penstock.client.Sink",
        guarantee=Guarantee.EXACTLY_ONCE,
        votes=True,
        options_class="connector.options:ConnectorOptions",
        sink_class="connector.sink:ConnectorSink",
        place=url_places.address,
        fixed=("host", "port"),
        make=_connector,
        credentials="Put the cookie into a file: cookie_file=FILE.",
    ),
    Kind(
        name="file",
        schemes=("file",),
        written="file:PATH",
        about="files in a directory of its own",
        guarantee=Guarantee.EXACTLY_ONCE,
        votes=True,
        options_class="file.sink:FileOptions",
        sink_class="file.sink:FileSink",
        place=url_places.path,
        fixed=("path",),
        make=_file,
    ),
    Kind(
        name="postgresql",
        schemes=("postgresql",),
        written="postgresql://USER@HOST:PORT/DATABASE",
        about="rows of a table",
        guarantee=Guarantee.EXACTLY_ONCE,
        votes=True,
        options_class="postgres.options:PostgresOptions",
        sink_class="postgres.sink:PostgresSink",
        place=url_places.database,
        fixed=url_places.DATABASE_FIELDS,
        make=_postgres,
        ddl="postgres.ddl:describe",
        extra=Extra(module="psycopg", name="postgres"),
        credentials="Put the password into ~/.pgpass, PGPASSWORD or a service file of the worker's user.",
    ),
    Kind(
        name="sqlite",
        schemes=("sqlite",),
        written="sqlite:PATH",
        about="the last value of each key, or with format=json rows of a table (exactly-once), in a SQLite file",
        guarantee=Guarantee.IDEMPOTENT,
        votes=True,
        options_class="sqlite.options:SqliteOptions",
        sink_class="sqlite.sink:SqliteSink",
        place=url_places.path,
        fixed=("path",),
        make=_sqlite,
        ddl="sqlite.ddl:describe",
    ),
    Kind(
        name="stdout",
        schemes=("stdout",),
        written="stdout:",
        about="the worker's standard output",
        guarantee=Guarantee.AT_LEAST_ONCE,
        votes=False,
        options_class="followers.stdout:StdoutOptions",
        sink_class="followers.stdout:StdoutSink",
        place=url_places.nowhere,
        fixed=(),
        make=_following,
    ),
    Kind(
        name="http",
        schemes=("http", "https"),
        written="http[s]://HOST[:PORT]/PATH",
        about="a POST for each block, with an Idempotency-Key",
        guarantee=Guarantee.AT_LEAST_ONCE,
        votes=False,
        options_class="followers.http:HttpOptions",
        sink_class="followers.http:HttpSink",
        place=url_places.endpoint,
        fixed=("secure", "host", "port", "path"),
        make=_following,
        prefix=url_places.HTTP_PREFIX,
        credentials="Put an Authorization header into a file: penstock_headers_file=FILE.",
    ),
    Kind(
        name="callback",
        schemes=("callback",),
        written="callback:PATH.py:FUNCTION",
        about="a Python function, called in the worker",
        guarantee=Guarantee.AT_LEAST_ONCE,
        votes=False,
        options_class="followers.callback:CallbackOptions",
        sink_class="followers.callback:CallbackSink",
        place=url_places.function,
        fixed=("path", "function"),
        make=_following,
    ),
    Kind(
        name=HOSTED,
        schemes=(HOSTED,),
        written=f"{HOSTED}:NAME",
        about="a connector of the application that the worker runs",
        guarantee=Guarantee.AT_LEAST_ONCE,
        votes=False,
        options_class="followers.hosted:HostedOptions",
        sink_class="followers.hosted:NotHosted",
        place=url_places.name,
        fixed=("name",),
        make=_following,
    ),
)

BY_SCHEME: Mapping[str, Kind] = MappingProxyType({scheme: kind for kind in KINDS for scheme in kind.schemes})
