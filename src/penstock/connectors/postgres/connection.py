"""Connections of the sources to PostgreSQL, and what its errors mean."""

from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
from psycopg.sql import Identifier

from penstock.connectors.api import Lost
from penstock.connectors.postgres.json_values import SETTINGS
from penstock.connectors.postgres.options import PostgresOptions
from penstock.core.errors import RequestError

REASON_CHARACTERS_MAX = 500
"""How much of a server's message is shown: it may quote a whole row."""


def described(error: psycopg.Error) -> str:
    """The server's message."""
    found = error.diag
    text = "; ".join(part for part in (found.message_primary, found.message_detail) if part) or str(error)
    return text if len(text) <= REASON_CHARACTERS_MAX else f"{text[:REASON_CHARACTERS_MAX]}…"


@contextmanager
def lost_if_broken(where: str) -> Iterator[None]:
    """Errors of the database as Lost: the connector is run again later."""
    try:
        yield
    except psycopg.Error as error:
        raise Lost(f"{where}: {described(error)}", "It is retried automatically.") from error
    except RequestError as error:
        raise Lost(f"{where}: {error}", error.hint) from error


def connect(options: PostgresOptions, name: str, **more: str) -> psycopg.Connection:
    """Without prepared statements, in autocommit, with the settings under which values have the same texts
    everywhere.
    """
    return psycopg.connect(
        **options.parameters,  # type: ignore[arg-type]
        application_name=f"penstock {name}",
        client_encoding="UTF8",
        options=SETTINGS,
        autocommit=True,
        prepare_threshold=None,
        **more,  # type: ignore[arg-type]
    )


def identifier_of(table: str) -> Identifier:
    """`NAME` or `SCHEMA.NAME`, quoted."""
    return Identifier(*table.split("."))
