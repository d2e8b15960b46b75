"""`penstock cluster`: the workers on one bucket, and which of them owns what."""

import json
import time
from typing import Annotated

import msgspec
import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Column, Table

from penstock.cli.connect import DataOption, JsonOption, WorkerOption, get_json, worker_to_read
from penstock.client.coordinator.connection import Connection
from penstock.client.credentials import https_context, parse_worker
from penstock.cluster.lease_state import LEASE_TIMING
from penstock.core.errors import RequestError, Unavailable
from penstock.protocol.api.cluster import ClusterStatus, Drain, Member, Move, Place

app = typer.Typer(no_args_is_help=True, help="The workers on one bucket: see them, and move the shard between them.")

_HTTP_SECONDS_MAX = 10.0
_LOOK_SECONDS = 0.2
_MOVE_SECONDS_MAX = 180.0
"""A move takes a second. Longer than all its time-outs together, with a store that does not answer."""


def register(commands: typer.Typer) -> None:
    commands.add_typer(app, name="cluster")


def cluster_status(worker: str) -> ClusterStatus:
    """Raises Unavailable."""
    return msgspec.convert(get_json(worker, "/cluster"), ClusterStatus)


@app.command("status")
def status(worker: WorkerOption = None, data: DataOption = None, as_json: JsonOption = False) -> None:
    """List the workers of the cluster, with their addresses, and which of them owns the shard.

    Any worker knows, a standby as well.
    """
    found = cluster_status(worker_to_read(worker, data))
    if as_json:
        typer.echo(json.dumps(msgspec.to_builtins(found)))
        return
    console = Console(highlight=False)
    console.print(f"{found.url}: {_places(found)}", markup=False, soft_wrap=True)
    console.print(cluster_table(found))
    if found.move is not None and not found.move.is_over:
        console.print(_progress(found.move), markup=False)


def _places(found: ClusterStatus) -> str:
    if not found.shards:
        return "nobody owns the shard"
    return ", ".join(f"shard {one.shard} is with {one.owner}, term {one.term}" for one in found.shards)


def cluster_table(found: ClusterStatus) -> Table:
    table = Table(*(Column(name, overflow="fold") for name in ("worker", "role", "sources", "segments", "http")))
    for one in found.workers:
        ports = (one.addresses.get(name, "") for name in ("connector", "segment", "http"))
        table.add_row(escape(one.worker), _role(one), *map(escape, ports))
    return table


def _role(member: Member) -> str:
    role = "owner" if member.shards else "standby"
    role += ", drained" if member.is_drained else ""
    is_quiet = member.quiet_seconds >= LEASE_TIMING.expired
    return f"[red]{role}, not heard of for {member.quiet_seconds:.0f} s[/]" if is_quiet else role


@app.command("drain")
def drain(
    name: Annotated[str, typer.Argument(metavar="WORKER", help="Its name in penstock cluster status.")],
    to: Annotated[str, typer.Option(metavar="WORKER", help="Where the shard moves. Default: any standby.")] = "",
    worker: WorkerOption = None,
    data: DataOption = None,
) -> None:
    """Move the shard away from a worker, for example to replace its machine.

    Sources follow to the new owner, and what they have sent is neither lost
    nor stored twice. Returns when the shard has moved. The worker stays a
    standby until it is stopped, and takes over again only if no other worker
    does.
    """
    console = Console(stderr=True, highlight=False)
    asked = worker_to_read(worker, data)
    before = cluster_status(asked)
    owner = _owner(before, name)
    where = owner.addresses.get("http", "")
    asked = asked if before.worker == owner.worker else _same_scheme(asked, where)
    _post(asked, Drain(worker=owner.worker, to=to))
    now_with = _wait(asked, before.shards[0], console)
    typer.echo(f"shard 0 has moved from {owner.worker} to {now_with}")


def _owner(found: ClusterStatus, name: str) -> Member:
    """Raises RequestError if there is no such worker, or nothing to move away from it."""
    member = next((one for one in found.workers if one.worker == name), None)
    if member is None:
        known = ", ".join(one.worker for one in found.workers)
        raise RequestError(f"worker {name!r} is not in this cluster", f"Its workers are: {known}.")
    if not member.shards:
        raise RequestError(f"worker {name} is a standby: there is nothing to move away from it", "It can be stopped.")
    if len(found.workers) == 1:
        raise RequestError(
            f"there is no other worker to which the shard of {name} can move",
            f"Start one first: penstock worker --store {found.url}.",
        )
    return member


def _same_scheme(asked: str, address: str) -> str:
    _, is_tls = parse_worker(asked)
    return f"https://{address}" if is_tls else address


def _post(worker: str, request: Drain) -> None:
    address, is_tls = parse_worker(worker)
    connection = Connection(address, _HTTP_SECONDS_MAX, https_context(address.host) if is_tls else None)
    try:
        connection.ask("POST", "/cluster/drain", msgspec.json.encode(request))
    finally:
        connection.close()


def _wait(worker: str, before: Place, console: Console) -> str:
    """Until another worker owns the shard; returns which. Raises Unavailable if it has not moved."""
    deadline, shown, former = time.monotonic() + _MOVE_SECONDS_MAX, "", before.owner
    while time.monotonic() < deadline:
        try:
            found = cluster_status(worker)
        except Unavailable:  # its HTTP port changes hands
            time.sleep(_LOOK_SECONDS)
            continue
        owner, term = (found.shards[0].owner, found.shards[0].term) if found.shards else (former, before.term)
        if owner == former and term > before.term:
            raise Unavailable("the shard has not moved: its worker has taken it back", "See penstock cluster status.")
        if found.move is not None:
            if found.move.failure:
                raise Unavailable(f"the shard has not moved: {found.move.failure}", "See penstock cluster status.")
            if (text := _progress(found.move)) != shown:
                console.print(text, markup=False)
                shown = text
            if owner != former and found.move.is_over:
                return owner
        elif owner != former:
            return owner
        time.sleep(_LOOK_SECONDS)
    raise Unavailable(f"the shard has not moved within {_MOVE_SECONDS_MAX:.0f} s", "See penstock cluster status.")


def _progress(move: Move) -> str:
    sources = f", {move.sessions} sources connected here" if move.sessions else ""
    return f"shard {move.shard} to {move.to}: {move.step}{sources}"
