"""How a command finds the worker it talks to."""

import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from penstock.client.segments import SegmentClient
from penstock.core.errors import Unavailable

HTTP_SECONDS_MAX = 10

WorkerOption = Annotated[
    str, typer.Option("--worker", envvar="PENSTOCK_WORKER", metavar="HOST:PORT", help="The worker's HTTP address.")
]
DataOption = Annotated[
    Path | None, typer.Option("--data", metavar="DIR", help="Find the worker by its data directory instead.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]
DEFAULT_WORKER = "127.0.0.1:7102"


def get_json(worker: str, path: str) -> Any:
    """What the worker's HTTP side says. Raises Unavailable."""
    try:
        with urllib.request.urlopen(f"http://{worker}{path}", timeout=HTTP_SECONDS_MAX) as response:
            return json.load(response)
    except (OSError, ValueError) as error:
        reason = error.reason if isinstance(error, urllib.error.URLError) else error
        raise Unavailable(f"no worker answers on {worker}: {reason}") from None


def http_address(worker: str, data: Path | None) -> str:
    if data is None:
        return worker
    try:
        ports = json.loads((data / "ports.json").read_text())
    except FileNotFoundError:
        raise Unavailable(
            f"no worker runs on {data}: there is no {data / 'ports.json'}", f"Start it: penstock worker --data {data}"
        ) from None
    return f"127.0.0.1:{ports['http']}"


@contextmanager
def segment_client(worker: str, data: Path | None) -> Iterator[SegmentClient]:
    """A client of the worker's segment port, which its HTTP side tells."""
    address = http_address(worker, data)
    port = get_json(address, "/status")["ports"]["segment"]
    with SegmentClient(f"{address.rpartition(':')[0]}:{port}") as client:
        yield client
