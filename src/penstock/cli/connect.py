"""How a command finds the worker it talks to."""

import json
import os
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPException
from pathlib import Path
from ssl import SSLContext, create_default_context
from typing import Annotated, Any

import typer

from penstock.client.segments import SegmentClient
from penstock.core.errors import RequestError, Unavailable

HTTP_SECONDS_MAX = 10

WorkerOption = Annotated[
    str, typer.Option("--worker", envvar="PENSTOCK_WORKER", metavar="HOST:PORT", help="The worker's HTTP address.")
]
DataOption = Annotated[
    Path | None, typer.Option("--data", metavar="DIR", help="Find the worker by its data directory instead.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]
DEFAULT_WORKER = "127.0.0.1:7102"

TLS_VARIABLES = ("PENSTOCK_TLS_CA", "PENSTOCK_TLS_CERT", "PENSTOCK_TLS_KEY")
"""PEM files: the authority of the worker's certificate; our own certificate and its key, where it wants one."""


def get_json(worker: str, path: str) -> Any:
    """What the worker's HTTP side says. Raises Unavailable."""
    try:
        with urllib.request.urlopen(f"http://{worker}{path}", timeout=HTTP_SECONDS_MAX) as response:
            return json.load(response)
    except (OSError, ValueError, HTTPException) as error:
        reason = error.reason if isinstance(error, urllib.error.URLError) else error
        raise Unavailable(
            f"no worker answers on {worker}: {reason}",
            "Start it (penstock worker --data DIR), and give its HTTP address or --data DIR.",
        ) from None


def http_address(worker: str, data: Path | None) -> str:
    if data is None:
        return worker
    try:
        ports = json.loads((data / "ports.json").read_text())
        return f"127.0.0.1:{ports['http']}"
    except (ValueError, KeyError, TypeError):
        raise Unavailable(f"{data / 'ports.json'} is not what a worker writes", "Use --worker HOST:PORT.") from None
    except FileNotFoundError:
        raise Unavailable(
            f"no worker runs on {data}: there is no {data / 'ports.json'}", f"Start it: penstock worker --data {data}"
        ) from None


@contextmanager
def segment_client(worker: str, data: Path | None) -> Iterator[SegmentClient]:
    """A client of the worker's segment port, which its HTTP side tells."""
    address = http_address(worker, data)
    status = get_json(address, "/status")
    context = tls_context()
    if status["tls"] and context is None:
        raise RequestError("the worker speaks TLS alone", "Give its authority: penstock segment --tls-ca FILE VERB …")
    with SegmentClient(f"{address.rpartition(':')[0]}:{status['ports']['segment']}", ssl=context) as client:
        yield client


def tls_context() -> SSLContext | None:
    """From the variables that the group's options set; None: no TLS. Raises RequestError for unusable files."""
    authority, cert, key = (os.environ.get(name) for name in TLS_VARIABLES)
    if not authority:
        return None
    try:
        context = create_default_context(cafile=authority)
        if cert:
            context.load_cert_chain(cert, key or None)
    except OSError as error:  # SSLError is one
        raise RequestError(f"the TLS files cannot be used: {error}", "They must be PEM files.") from None
    return context
