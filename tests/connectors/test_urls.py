"""Sinks by their URLs: the same options as in YAML; errors are reported with the nearest valid name."""

import subprocess
import sys
from pathlib import Path
from typing import Any, cast

import pytest

from penstock.application.type_pages import url_options
from penstock.connectors.registry import CONNECTORS, SCHEMES, make_connector
from penstock.connectors.sink_api import VotingSink
from penstock.connectors.tables import no_schema
from penstock.connectors.urls import parse_sink, written
from penstock.core.errors import RequestError
from penstock.core.types import Guarantee


@pytest.mark.parametrize(
    ("url", "type_name", "config"),
    [
        ("file:results", "file", {"mode": "write", "path": "results"}),
        ("file:///var/out", "file", {"mode": "write", "path": "/var/out"}),
        ("file:with%20space%3F", "file", {"mode": "write", "path": "with space?"}),
        (
            "file:a/b?format=raw&rotate_bytes=64MiB&rotate=1h",
            "file",
            {"mode": "write", "path": "a/b", "format": "raw", "rotate_bytes": "64MiB", "rotate": "1h"},
        ),
        ("file:log?mode=append", "file", {"mode": "append", "path": "log"}),
        ("sqlite:last.db?table=latest", "sqlite", {"path": "last.db", "table": "latest"}),
        ("delta:s3://lake/orders?file_bytes=1MiB", "delta", {"path": "s3://lake/orders", "file_bytes": 1 << 20}),
        (
            "sqlite:a.db?table=t&format=json&upsert=a,b&create=true&unknown_fields=ignore",
            "sqlite",
            {
                "path": "a.db",
                "table": "t",
                "format": "json",
                "upsert": ["a", "b"],
                "create": True,
                "unknown_fields": "ignore",
            },
        ),
        ("connector://[::1]:7200", "connector-protocol", {"host": "::1", "port": 7200}),
        (
            "connector://sinks.example:7200?tls=1&ca=ca.pem&vote=2.5s&event_time_unit=us",
            "connector-protocol",
            {
                "host": "sinks.example",
                "port": 7200,
                "tls": True,
                "ca": "ca.pem",
                "vote": "2500ms",
                "event_time_unit": "us",
            },
        ),
        (
            "postgresql://me@db.example:5433/shop?table=public.orders&format=raw&upsert=a,b",
            "postgres",
            {
                "user": "me",
                "host": "db.example",
                "port": 5433,
                "dbname": "shop",
                "table": "public.orders",
                "format": "raw",
                "upsert": ["a", "b"],
            },
        ),
        ("postgres:///?table=t&service=mine", "postgres", {"table": "t", "service": "mine"}),
        ("https://h", "http-client", {"url": "https://h/", "format": "lines", "on_refusal": "retry"}),
        (
            "http://h:81/in?a=1&penstock_format=json&b=x%20y&penstock_timeout=2s",
            "http-client",
            {"url": "http://h:81/in?a=1&b=x+y", "format": "json", "on_refusal": "retry", "timeout": "2s"},
        ),
        (
            "https://h/in?penstock_tls.ca=ca.pem&penstock_headers.X-Team=sinks",
            "http-client",
            {
                "url": "https://h/in",
                "format": "lines",
                "on_refusal": "retry",
                "tls": {"ca": "ca.pem"},
                "headers": {"X-Team": "sinks"},
            },
        ),
        ("stdout:", "stdio", {"format": "lines"}),
        ("stdout:?format=json", "stdio", {"format": "json"}),
        ("callback:a/mine.py:on_rows", "callback", {"path": "a/mine.py", "function": "on_rows"}),
        ("tcp://h:9000", "tcp-client", {"host": "h", "port": 9000, "format": "lines"}),
        ("tcp-client://h:9000?format=raw", "tcp-client", {"host": "h", "port": 9000}),
        ("wss://h/in?who=me&penstock_messages=binary", "ws-client", {"url": "wss://h/in?who=me", "messages": "binary"}),
        ("segment:numbers?worker=h:1&quota=1MiB", "segment", {"segment": "numbers", "worker": "h:1", "quota": "1MiB"}),
        ("null:", "null", {}),
    ],
)
def test_a_url_and_yaml_give_the_same_options(url: str, type_name: str, config: dict[str, Any]) -> None:
    parsed, made = parse_sink(url), make_connector(type_name, config)
    assert type(parsed.connector) is type(made)
    assert parsed.options == made.options


@pytest.mark.parametrize(
    ("url", "text", "hint"),
    [
        ("results", "not the URL of a sink", "Write file:results"),
        ("fil:results", 'unknown sink type "fil"', 'Did you mean "file"?'),
        ("pulsar://h", 'unknown sink type "pulsar"', "Available: bench, callback, connector, connector-protocol"),
        ("file:", "the path is missing", "Write file:PATH"),
        ("file://results/x", "'results' is read as a host", "Write file:results/x"),
        ("file:a?formt=raw", 'unknown option "formt"', 'Did you mean "format"?'),
        ("file:a?format=line", 'format: expected "lines", "raw" or "frames", found "line"', 'Did you mean "lines"?'),
        ("file:a?format=", "format has no value", "Leave it out"),
        ("file:a?format=raw&format=lines", "format is set twice", "Set it once"),
        ("file:a?path=b", "path is in the URL already", "Write file:PATH"),
        ("file:a?rotate_bytes=much", "rotate_bytes: expected a size like 512KiB", ""),
        ("file:a?rotate=-1s", "rotate: expected a duration", ""),
        ("file:a?mode=append&rotate=1h", "rotate is only for mode write", ""),
        ("file:a#b", "'#'", "%23"),
        ("file:a\nb", "not the URL of a sink", "penstock sink types"),
        ("sqlite:a.db", "table is missing", "Add table="),
        ("sqlite::memory:?table=t", "a database in memory would lose committed epochs", ""),
        ("connector://h:1?vote=1000d", "vote: expected at most 86400", ""),
        ("connector://h", "the port is missing", "connector://h:PORT"),
        ("connector://h:0", "not a valid port", "1 to 65535"),
        ("connector://h:1/path", "'/path' is not expected here", "connector://h:1"),
        ("connector://h:1?tls=maybe", "tls: expected true or false", ""),
        ("connector://h:1?ca=x", "are for TLS", ""),
        ("http:///path", "the host is missing", "http://HOST"),
        ("http://[::1", "is not a valid URL", "penstock sink types"),
        ("http://h?penstock_tls.cas=x", 'unknown option "penstock_tls.cas"', 'Did you mean "penstock_tls.ca"?'),
        ("stdout:here", "'here' is not expected here", "Write stdout:"),
        ("callback:mine.py", "does not name a function", "callback:PATH.py:FUNCTION"),
        ("callback:mine.py:not-one", "does not name a function", "callback:PATH.py:FUNCTION"),
        ("tcp-server:?port=0", "it can only be a sink in an application", "penstock connectors tcp-server"),
        ("metronome:", "metronome has no port `in`", "penstock sink types"),
    ],
)
def test_an_error_in_a_url_is_reported_with_what_to_do(url: str, text: str, hint: str) -> None:
    with pytest.raises(RequestError) as caught:
        parse_sink(url)
    assert text in str(caught.value)
    assert hint in caught.value.hint


def test_all_errors_in_a_url_are_reported_at_once() -> None:
    with pytest.raises(RequestError) as caught:
        parse_sink("sqlite:a.db?tabel=x&journal=y")
    assert str(caught.value) == ('sqlite:a.db: table is missing; unknown option "tabel"; unknown option "journal"')
    assert 'Did you mean "table"?' in caught.value.hint


@pytest.mark.parametrize(
    ("url", "hint"),
    [
        ("postgresql://me:hush@h/db?table=t", "~/.pgpass"),
        ("postgresql://me:hu/hush@h/db?table=t", ""),
        ("postgresql://me@h/db?table=t&password=hush", "~/.pgpass"),
        ("http://me:hush@h/in", "penstock_headers_file"),
        ("http://hush@h/in", ""),
        ("connector://h:1?cookie=hush", "cookie_file=FILE"),
    ],
)
def test_a_secret_in_a_url_is_refused_and_not_repeated(url: str, hint: str) -> None:
    with pytest.raises(RequestError) as caught:
        parse_sink(url)
    assert hint in caught.value.hint
    assert "hush" not in str(caught.value) + caught.value.hint


def test_a_url_is_shown_without_the_values_of_the_servers_own_options() -> None:
    shown = parse_sink("https://h/in?token=hush&penstock_format=json").shown
    assert shown == "https://h/in?token=…&penstock_format=json"
    assert parse_sink("file:results?format=raw").shown == "file:results?format=raw"


def test_every_type_with_a_port_in_has_a_url() -> None:
    promises = {}
    for name in CONNECTORS.own:
        about = CONNECTORS.get(name).about
        can = about.capabilities
        if can.sink is not None and not can.is_linked:
            promises[written(about)] = can.sink, can.votes
    assert promises == {
        "bench:": (Guarantee.AT_LEAST_ONCE, False),
        "callback:PATH.py:FUNCTION": (Guarantee.AT_LEAST_ONCE, False),
        "email:": (Guarantee.AT_LEAST_ONCE, False),
        "exec:": (Guarantee.AT_LEAST_ONCE, False),
        "sse-server:": (Guarantee.AT_MOST_ONCE, False),
        "udp://HOST:PORT": (Guarantee.AT_MOST_ONCE, False),
        "unix-client:": (Guarantee.AT_LEAST_ONCE, False),
        "webhook-client:": (Guarantee.AT_LEAST_ONCE, False),
        "connector://HOST:PORT": (Guarantee.EXACTLY_ONCE, True),
        "delta:PATH": (Guarantee.EXACTLY_ONCE, True),
        "file:PATH": (Guarantee.EXACTLY_ONCE, True),
        "http[s]://HOST[:PORT]/PATH": (Guarantee.AT_LEAST_ONCE, False),
        "iceberg:PATH": (Guarantee.EXACTLY_ONCE, True),
        "kafka://HOST:PORT/TOPIC": (Guarantee.EXACTLY_ONCE, False),
        "mqtt://HOST[:PORT]/TOPIC": (Guarantee.AT_LEAST_ONCE, False),
        "nats://HOST[:PORT]/SUBJECT": (Guarantee.EXACTLY_ONCE, False),
        "null:": (Guarantee.EXACTLY_ONCE, False),
        "parquet:PATH": (Guarantee.EXACTLY_ONCE, True),
        "postgresql://USER@HOST:PORT/DATABASE": (Guarantee.EXACTLY_ONCE, True),
        "rabbitmq://HOST[:PORT]/ROUTING-KEY": (Guarantee.AT_LEAST_ONCE, False),
        "redis://HOST:PORT/STREAM": (Guarantee.EXACTLY_ONCE, False),
        "segment:NAME": (Guarantee.AT_LEAST_ONCE, False),
        "sql:": (Guarantee.EXACTLY_ONCE, False),
        "sqlite:PATH": (Guarantee.IDEMPOTENT, True),
        "stdout:": (Guarantee.AT_LEAST_ONCE, False),
        "tcp://HOST:PORT": (Guarantee.AT_LEAST_ONCE, False),
        "ws[s]://HOST[:PORT]/PATH": (Guarantee.AT_LEAST_ONCE, False),
    }


@pytest.mark.parametrize("name", CONNECTORS.own)
def test_the_form_of_a_url_names_options_of_the_model(name: str) -> None:
    about = CONNECTORS.get(name).about
    fields = about.options.model_fields
    assert {*about.url.fields, *about.url.implied} <= fields.keys()
    own = [option.name.removeprefix(about.url.prefix) for option in url_options(about)]
    assert [option for option in own if "." not in option] == [one for one in fields if one not in about.url.fields]


def test_a_scheme_is_not_the_name_of_another_type() -> None:
    assert not SCHEMES.keys() & CONNECTORS.own.keys()
    assert {*SCHEMES.values()} <= CONNECTORS.own.keys()


@pytest.mark.parametrize("url", ["file:OUT", "sqlite:OUT/a.db?table=t", "postgresql:///db?table=t", "connector://h:1"])
def test_a_transactional_type_makes_a_voting_sink(tmp_path: Path, url: str) -> None:
    parsed = parse_sink(url.replace("OUT", str(tmp_path)))
    made = cast("VotingSink", parsed.connector.make_sink("p/s", no_schema))
    assert parsed.votes
    assert not made.is_open


def test_the_sink_of_a_program_has_the_name_of_its_pipeline_unless_the_url_has_one() -> None:
    """Existing sinks use it as a file name."""
    assert "'p@s'" in repr(parse_sink("connector://h:1").connector.make_sink("p/s", no_schema))
    assert "'mine'" in repr(parse_sink("connector://h:1?instance=mine").connector.make_sink("p/s", no_schema))


def test_a_missing_driver_is_reported_with_how_to_install_it() -> None:
    code = (
        "import sys; sys.modules['psycopg'] = None\n"
        "from penstock.connectors.registry import NotInstalled\n"
        "from penstock.connectors.urls import parse_sink\n"
        "try: parse_sink('postgresql://me@h/db?table=t').check_installed()\n"
        "except NotInstalled as error: print(error, '|', error.hint)"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, timeout=200, capture_output=True, text=True)
    assert "needs psycopg, which is not installed here | " in done.stdout
    assert "pip install 'penstock-streams[postgres]'" in done.stdout


def test_no_database_driver_is_loaded_before_it_is_needed() -> None:
    code = (
        "import sys; from penstock.connectors.urls import parse_sink\n"
        "parse_sink('postgresql:///?table=t'), parse_sink('sqlite:a?table=t'), parse_sink('file:a')\n"
        "parse_sink('delta:a')\n"
        "assert not {'psycopg', 'sqlite3', 'numba', 'pyarrow', 'deltalake'} & sys.modules.keys()"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=200)
