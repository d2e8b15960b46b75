"""Sinks by their URLs: what is right is taken, what is wrong is named, with the nearest that is right."""

import subprocess
import sys
from pathlib import Path

import pytest

from penstock.connectors.callback import RowFormat
from penstock.connectors.connector_protocol.options import ConnectorOptions
from penstock.connectors.file.sink import FileFormat, FileOptions
from penstock.connectors.postgres.sink import PostgresFormat, PostgresOptions
from penstock.connectors.sqlite.sink import SqliteOptions
from penstock.connectors.threaded import Threaded
from penstock.core.errors import RequestError
from penstock.core.types import Guarantee
from penstock.delivery.followers.http import HttpOptions, HttpSink
from penstock.delivery.urls.kinds import KINDS, Kind
from penstock.delivery.urls.spec import make_sink, parse_sink


@pytest.mark.parametrize(
    ("url", "options"),
    [
        ("file:results", FileOptions(Path("results"))),
        ("file:///var/out", FileOptions(Path("/var/out"))),
        ("file:with%20space%3F", FileOptions(Path("with space?"))),
        (
            "file:a/b?format=raw&rotate_bytes=64MiB&rotate_seconds=3600",
            FileOptions(Path("a/b"), FileFormat.RAW, 64 << 20, 3600.0),
        ),
        ("sqlite:last.db?table=latest", SqliteOptions(Path("last.db"), "latest")),
        ("connector://[::1]:7200", ConnectorOptions(host="::1", port=7200)),
        (
            "connector://sinks.example:7200?tls=1&ca=ca.pem&vote_seconds=2.5&event_time_unit=us",
            ConnectorOptions(
                host="sinks.example", port=7200, tls=True, ca=Path("ca.pem"), vote_seconds=2.5, event_time_unit="us"
            ),
        ),
        (
            "postgresql://me@db.example:5433/shop?table=public.orders&format=raw&upsert=a,b",
            PostgresOptions(
                user="me",
                host="db.example",
                port=5433,
                dbname="shop",
                table="public.orders",
                format=PostgresFormat.RAW,
                upsert=("a", "b"),
            ),
        ),
        ("postgresql:///?table=t&service=mine", PostgresOptions(table="t", service="mine")),
        ("https://h", HttpOptions(secure=True, host="h", port=443, path="/")),
        (
            "http://h:81/in?a=1&penstock_format=json&b=x%20y&penstock_timeout_seconds=2",
            HttpOptions(
                secure=False, host="h", port=81, path="/in?a=1&b=x+y", format=RowFormat.JSON, timeout_seconds=2.0
            ),
        ),
    ],
)
def test_a_url_says_all_options(url: str, options: object) -> None:
    assert parse_sink(url).options == options


@pytest.mark.parametrize(
    ("url", "text", "hint"),
    [
        ("results", "no URL of a sink", "Write file:results"),
        ("fil:results", "no kind of sink 'fil'", "Did you mean file?"),
        ("postgres://h/db", "no kind of sink 'postgres'", "Did you mean postgresql?"),
        ("kafka://h", "no kind of sink 'kafka'", "There are: callback, connector, file"),
        ("file:", "the path is missing", "Write file:PATH"),
        ("file://results/x", "'results' stands where a host would", "Write file:results/x"),
        ("file:a?formt=raw", "no option 'formt'", "Did you mean format?"),
        ("file:a?format=line", "format is 'line'", "Did you mean lines?"),
        ("file:a?format=", "format has no value", "Leave it out"),
        ("file:a?format=raw&format=lines", "format is given twice", "Give it once"),
        ("file:a?rotate_bytes=much", "rotate_bytes is 'much'", "a size like 64MiB"),
        ("file:a?rotate_seconds=-1", "rotate_seconds is '-1'", "greater than 0"),
        ("file:a?rotate_seconds=inf", "rotate_seconds is 'inf'", "greater than 0"),
        ("file:a#b", "'#'", "%23"),
        ("file:a\nb", "no URL of a sink", "penstock sink kinds"),
        ("sqlite:a.db", "table is missing", "Add table="),
        ("sqlite::memory:?table=t", "forgets what it has promised", "Name a file"),
        ("connector://h:1?vote_seconds=1e9", "is not above 0 and up to 86400", ""),
        ("connector://h", "the port is missing", "connector://h:PORT"),
        ("connector://h:0", "no port", "1 to 65535"),
        ("connector://h:1/path", "'/path' means nothing", "connector://h:1"),
        ("connector://h:1?tls=maybe", "tls is 'maybe'", "Write 1 or 0"),
        ("connector://h:1?ca=x", "are for TLS", "Add tls=1"),
        ("http:///path", "the host is missing", "http://HOST"),
        ("http://[::1", "is no URL", "penstock sink kinds"),
        ("stdout:here", "'here' means nothing", "Write stdout: alone"),
        ("callback:mine.py", "a function of a file is wanted", "callback:PATH.py:FUNCTION"),
        ("callback:mine.py:not-one", "a function of a file is wanted", "callback:PATH.py:FUNCTION"),
    ],
)
def test_a_mistake_is_named_with_what_to_do(url: str, text: str, hint: str) -> None:
    with pytest.raises(RequestError) as caught:
        parse_sink(url)
    assert text in str(caught.value)
    assert hint in caught.value.hint


def test_all_mistakes_of_a_url_are_told_at_once() -> None:
    with pytest.raises(RequestError) as caught:
        parse_sink("sqlite:a.db?tabel=x&journal=y")
    assert str(caught.value) == (
        "sqlite:a.db: there is no option 'tabel'; there is no option 'journal'; table is missing"
    )
    assert "Did you mean table?" in caught.value.hint


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


def test_what_is_shown_has_no_values_of_a_server_s_own_options() -> None:
    shown = parse_sink("https://h/in?token=hush&penstock_format=json").shown
    assert shown == "https://h/in?token=…&penstock_format=json"
    assert parse_sink("file:results?format=raw").shown == "file:results?format=raw"


def test_every_kind_says_what_it_promises_and_has_options_that_can_be_shown() -> None:
    promises = {kind.name: (kind.guarantee, kind.votes) for kind in KINDS}
    assert promises == {
        "connector": (Guarantee.EXACTLY_ONCE, True),
        "file": (Guarantee.EXACTLY_ONCE, True),
        "postgresql": (Guarantee.EXACTLY_ONCE, True),
        "sqlite": (Guarantee.IDEMPOTENT, True),
        "stdout": (Guarantee.AT_LEAST_ONCE, False),
        "http": (Guarantee.AT_LEAST_ONCE, False),
        "callback": (Guarantee.AT_LEAST_ONCE, False),
        "hosted": (Guarantee.AT_LEAST_ONCE, False),
    }


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_the_fields_that_a_place_says_are_those_of_the_options(kind: Kind) -> None:
    fields = kind.options_type().__dataclass_fields__
    assert set(kind.fixed) <= set(fields)
    assert [option.name for option in kind.options()] == [kind.prefix + f for f in fields if f not in kind.fixed]


def test_sinks_are_made_by_their_kind(tmp_path: Path) -> None:
    assert isinstance(make_sink(parse_sink(f"file:{tmp_path}/out"), "p", "s"), Threaded)
    assert isinstance(make_sink(parse_sink("http://h/in"), "p", "s"), HttpSink)
    assert "'p/s'" in repr(make_sink(parse_sink("connector://h:1"), "p", "s"))
    assert "'mine'" in repr(make_sink(parse_sink("connector://h:1?instance=mine"), "p", "s"))


def test_what_is_not_installed_is_told_with_how_to_install_it() -> None:
    code = (
        "import sys; sys.modules['psycopg'] = None\n"
        "from penstock.delivery.urls.kinds import NotInstalled\n"
        "from penstock.delivery.urls.spec import parse_sink\n"
        "try: parse_sink('postgresql://me@h/db?table=t')\n"
        "except NotInstalled as error: print(error, '|', error.hint)"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, timeout=200, capture_output=True, text=True)
    assert "needs psycopg, not installed here | pip install 'penstock-streams[postgres]'" in done.stdout


def test_no_driver_of_a_database_is_loaded_before_it_is_needed() -> None:
    code = "import sys, penstock.delivery.urls.spec; assert not {'psycopg', 'sqlite3'} & sys.modules.keys()"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=200)
