"""`penstock cluster`: the workers on one bucket, which of them serves what, and moving it."""

import json
import time
from collections.abc import Callable
from typing import Annotated

import msgspec
import typer
from rich.console import Console
from rich.markup import escape
from rich.measure import Measurement
from rich.table import Column, Table

from penstock.cli.connect import DataOption, JsonOption, WorkerOption, get_json, member_to_read
from penstock.client.coordinator.connection import connection_to
from penstock.client.credentials import parse_worker
from penstock.cluster.lease_state import LEASE_TIMING
from penstock.core.counts import show_count
from penstock.core.errors import RequestError, Unavailable
from penstock.protocol.api.cluster import ClusterStatus, Drain, Member, Move, MoveShard, Place
from penstock.protocol.api.codec import Empty

app = typer.Typer(no_args_is_help=True, help="The workers on one bucket: see them, and move shards between them.")

_HTTP_SECONDS_MAX = 10.0
_LOOK_SECONDS = 0.2
_REMEMBERED_SECONDS = 0.6
"""A worker's reply may be half a second old, and from before the change that was just asked for."""
_WIDTH_MAX = 10_000
_MOVE_SECONDS_MAX = 180.0
"""A move takes some seconds. Longer than all its time-outs together, with a store that does not answer."""

NameArgument = Annotated[str, typer.Argument(metavar="WORKER", help="Its name in penstock cluster status.")]


def register(commands: typer.Typer) -> None:
    commands.add_typer(app, name="cluster")


def cluster_status(worker: str) -> ClusterStatus:
    """Raises Unavailable."""
    return msgspec.convert(get_json(worker, "/cluster"), ClusterStatus)


@app.command("status")
def status(worker: WorkerOption = None, data: DataOption = None, as_json: JsonOption = False) -> None:
    """List the workers of the cluster, and which of them serves which shard.

    Any worker knows, a standby as well. All addresses are in the output of --json.
    """
    found = cluster_status(member_to_read(worker, data))
    if as_json:
        typer.echo(json.dumps(msgspec.to_builtins(found)))
        return
    console = Console(highlight=False)
    console.print(f"{found.url}: {_summary(found)}", markup=False, soft_wrap=True)
    for table in (worker_table(found), shard_table(found)):
        _print_whole(table, console)
    if found.move is not None and not found.move.is_over:
        console.print(_progress(found.move), markup=False)
    for problem in found.problems:
        console.print(problem, markup=False, style="red", soft_wrap=True)


def _summary(found: ClusterStatus) -> str:
    if not found.shards:
        return "no worker owns a shard"
    hosts = [one for one in found.workers if one.wants is not None]
    shards = show_count(len(found.shards), "shard")
    workers = len(hosts) or len(found.workers)
    leader = f", led by {found.leader}" if found.leader else ""
    return f"{shards} on {show_count(workers, 'worker')}{leader}"


def _print_whole(table: Table, console: Console) -> None:
    """Also if it is wider than the screen, or than what a pipe is taken for: half an address is none."""
    unlimited = console.options.update(max_width=_WIDTH_MAX)
    width = max(console.width, Measurement.get(console, unlimited, table).maximum)
    Console(highlight=False, width=width, soft_wrap=True).print(table)


def _table(*names: str) -> Table:
    return Table(*(Column(name, no_wrap=True, overflow="ignore") for name in names), box=None, pad_edge=False)


def worker_table(found: ClusterStatus) -> Table:
    """The workers that people start: hosts, and processes of a single shard without one."""
    table = _table("worker", "shards", "sources", "http")
    for one in found.workers:
        if not one.host:
            table.add_row(escape(one.worker), _role(one, found), *_ports(one.addresses))
    return table


def _ports(addresses: dict[str, str]) -> tuple[str, str]:
    return escape(addresses.get("connector", "")), escape(addresses.get("http", ""))


def _role(member: Member, found: ClusterStatus) -> str:
    own = [str(place.shard) for place in found.shards if member.worker in (place.owner, place.host)]
    role = ", ".join(own) if own else "none" if member.wants is not None else "standby"
    role += " (drained)" if member.is_drained else ""
    is_quiet = member.quiet_seconds >= LEASE_TIMING.expired
    return f"[red]{role}, silent for {member.quiet_seconds:.0f} s[/]" if is_quiet else role


def shard_table(found: ClusterStatus) -> Table:
    table = _table("shard", "served by", "sources", "http")
    for one in found.shards:
        who = one.host or one.owner or "no worker"
        if one.assigned and one.assigned != one.host:
            who = f"{who} → {one.assigned}"
        elif not one.addresses:
            who = f"[red]{escape(who)}, which is gone[/]"
        table.add_row(str(one.shard), who, *_ports(one.addresses))
    return table


# Changes.


@app.command("drain")
def drain(
    name: NameArgument,
    to: Annotated[
        str, typer.Option(metavar="WORKER", help="Of a worker with one shard (--shard): where that moves.")
    ] = "",
    worker: WorkerOption = None,
    data: DataOption = None,
    as_json: JsonOption = False,
) -> None:
    """Move all shards away from a worker, for example to replace its machine.

    Sources follow to the new owners, and what they have sent is neither lost
    nor stored twice. Returns when the shards have moved. The worker stays in
    the cluster until it is stopped, and takes shards over again only if no
    other worker does.
    """
    asked = member_to_read(worker, data)
    before = cluster_status(asked)
    member = _member(before, name)
    if member.wants is None:
        _drain_process(asked, before, member, to, as_json=as_json)
        return
    _post(asked, "/cluster/drain", Drain(worker=name, to=to))
    moving = [one.shard for one in before.shards if one.host == name]
    _wait_for_hosts(
        asked,
        lambda found: [one for one in found.shards if one.host == name or one.assigned == name],
        lambda found: drain_failure(found, name),
    )
    typer.echo(_moved(moving) if as_json else f"{name} has no shards now: {_listed(moving)} moved")


@app.command("move")
def move(
    shard: Annotated[int, typer.Argument(min=0, metavar="SHARD")],
    name: NameArgument,
    worker: WorkerOption = None,
    data: DataOption = None,
    as_json: JsonOption = False,
) -> None:
    """Move a shard to a worker. Sources follow. Returns when it has moved.

    It stays there until the worker is gone or drained, or until the next
    rebalance.
    """
    asked = member_to_read(worker, data)
    _check_hosts(cluster_status(asked))
    _post(asked, "/cluster/move", MoveShard(shard=shard, to=name))
    _wait_for_hosts(
        asked,
        lambda found: [one for one in found.shards if one.shard == shard and not _is_at(one, name)],
        lambda found: move_failure(found, shard, name),
    )
    typer.echo(_moved([shard]) if as_json else f"shard {shard} is served by {name}")


@app.command("rebalance")
def rebalance(worker: WorkerOption = None, data: DataOption = None, as_json: JsonOption = False) -> None:
    """Spread the shards evenly over the workers, with as few moves as possible. Returns when they have moved."""
    asked = member_to_read(worker, data)
    before = cluster_status(asked)
    _check_hosts(before)
    _post(asked, "/cluster/rebalance", Empty())
    after = _wait_for_hosts(asked, lambda found: [one for one in found.shards if not _is_at(one, one.assigned)])
    hosts = {one.shard: one.host for one in before.shards}
    moved = [one.shard for one in after.shards if one.host != hosts.get(one.shard)]
    if as_json:
        typer.echo(_moved(moved))
        return
    typer.echo(f"{_listed(moved)} moved" if moved else "the shards are spread evenly already: nothing moved")


def _moved(shards: list[int]) -> str:
    """For programs."""
    return json.dumps({"moved": shards})


def _listed(shards: list[int]) -> str:
    return f"{'shard' if len(shards) == 1 else 'shards'} {', '.join(map(str, shards))}" if shards else "no shards"


def _is_at(place: Place, host: str) -> bool:
    return place.host == host and place.assigned == host


def move_failure(found: ClusterStatus, shard: int, to: str) -> str:
    """Why this shard will not move there any more; "" while it may."""
    target = next((one for one in found.workers if one.worker == to), None)
    if target is None:
        return f"worker {to} is gone"
    if target.quiet_seconds >= LEASE_TIMING.expired:
        return f"worker {to} has been silent for {target.quiet_seconds:.0f} s"
    assigned = next((one.assigned for one in found.shards if one.shard == shard), to)
    return "" if assigned == to else f"it was assigned to {assigned} in the meantime"


def drain_failure(found: ClusterStatus, name: str) -> str:
    """Why this worker keeps its shards; "" while there is one that can take them."""
    others = [one for one in found.workers if one.wants is not None and one.worker != name]
    if all(one.is_drained or one.quiet_seconds >= LEASE_TIMING.expired for one in others):
        return "all other workers are drained or gone"
    return ""


def _check_hosts(found: ClusterStatus) -> None:
    if all(one.wants is None for one in found.workers):
        raise RequestError(
            "this cluster has no hosts: its workers were started with --shard", "Use penstock cluster drain WORKER."
        )


def _member(found: ClusterStatus, name: str) -> Member:
    """Raises RequestError if there is no such worker."""
    member = next((one for one in found.workers if one.worker == name), None)
    if member is None:
        known = ", ".join(one.worker for one in found.workers if not one.host)
        raise RequestError(f"worker {name!r} is not in this cluster", f"Its workers are: {known}.")
    if member.host:
        raise RequestError(
            f"{name} is a process of {member.host}", f"Drain that: penstock cluster drain {member.host}."
        )
    return member


def _wait_for_hosts(
    worker: str, left: Callable[[ClusterStatus], list[Place]], failure: Callable[[ClusterStatus], str] = lambda _: ""
) -> ClusterStatus:
    """Until nothing is left to move. Ctrl-C stops waiting, not the move. Raises Unavailable if it takes too long, or if
    there is a reason for which nothing will move.
    """
    console, shown = Console(stderr=True, highlight=False), ""
    deadline = time.monotonic() + _MOVE_SECONDS_MAX
    try:
        time.sleep(_REMEMBERED_SECONDS)
        while time.monotonic() < deadline:
            if (found := _try_status(worker)) is None:
                continue
            waiting = left(found)
            if not waiting:
                return found
            text = ", ".join(f"shard {one.shard}: {one.host or 'no worker'} → {one.assigned}" for one in waiting)
            if why := failure(found):
                raise Unavailable(f"not moved: {text}: {why}", "See penstock cluster status.")
            if text != shown:
                console.print(text, markup=False, soft_wrap=True)
                shown = text
            time.sleep(_LOOK_SECONDS)
    except KeyboardInterrupt:
        typer.echo("the shards keep moving: see penstock cluster status", err=True)
        raise typer.Exit(130) from None
    raise Unavailable(f"the shards have not moved within {_MOVE_SECONDS_MAX:.0f} s: {shown}", "See the workers' logs.")


def _try_status(worker: str) -> ClusterStatus | None:
    """None, after a pause, if it does not answer: the move continues meanwhile, and an HTTP port may change hands."""
    try:
        return cluster_status(worker)
    except Unavailable:
        time.sleep(_LOOK_SECONDS)
        return None


# A worker with one shard (--shard).


def _drain_process(asked: str, before: ClusterStatus, owner: Member, to: str, *, as_json: bool) -> None:
    console = Console(stderr=True, highlight=False)
    if not owner.shards:
        raise RequestError(
            f"worker {owner.worker} is a standby: there is nothing to move away from it", "It can be stopped."
        )
    place = next(one for one in before.shards if one.shard == owner.shards[0])
    if len(before.workers) == 1:
        raise RequestError(
            f"there is no other worker to which shard {place.shard} of {owner.worker} can move",
            f"Start one first: penstock worker --store {before.url} --shard {place.shard}.",
        )
    asked = asked if before.worker == owner.worker else _same_scheme(asked, owner.addresses.get("http", ""))
    _post(asked, "/cluster/drain", Drain(worker=owner.worker, to=to))
    now_with = _wait(asked, place, console)
    shown = f"shard {place.shard} has moved from {owner.worker} to {now_with}"
    typer.echo(_moved([place.shard]) if as_json else shown)


def _same_scheme(asked: str, address: str) -> str:
    _, is_tls = parse_worker(asked)
    return f"https://{address}" if is_tls else address


def _post(worker: str, path: str, request: msgspec.Struct) -> None:
    connection = connection_to(worker, _HTTP_SECONDS_MAX)
    try:
        connection.ask("POST", path, msgspec.json.encode(request))
    finally:
        connection.close()


def _wait(worker: str, before: Place, console: Console) -> str:
    """Until another worker owns the shard; returns which. Raises Unavailable if it has not moved."""
    deadline, shown, former = time.monotonic() + _MOVE_SECONDS_MAX, "", before.owner
    while time.monotonic() < deadline:
        if (found := _try_status(worker)) is None:
            continue
        place = next((one for one in found.shards if one.shard == before.shard), before)
        if place.owner == former and place.term > before.term:
            raise Unavailable("the shard has not moved: its worker has taken it back", "See penstock cluster status.")
        if found.move is not None:
            if found.move.failure:
                raise Unavailable(f"the shard has not moved: {found.move.failure}", "See penstock cluster status.")
            if (text := _progress(found.move)) != shown:
                console.print(text, markup=False)
                shown = text
            if place.owner != former and found.move.is_over:
                return place.owner
        elif place.owner != former:
            return place.owner
        time.sleep(_LOOK_SECONDS)
    raise Unavailable(f"the shard has not moved within {_MOVE_SECONDS_MAX:.0f} s", "See penstock cluster status.")


def _progress(move: Move) -> str:
    sources = f", {move.sessions} sources connected here" if move.sessions else ""
    return f"shard {move.shard} to {move.to}: {move.step}{sources}"
