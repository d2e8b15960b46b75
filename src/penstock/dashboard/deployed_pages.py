"""The pages of what is deployed, and where: the cluster, and the settings with a changed application to apply."""

import asyncio
import difflib
import logging
import os
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import MISSING, fields, is_dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from textwrap import indent
from typing import Any

import yaml
from nicegui import ui

from penstock.application.config.document import ConfigErrors, parse
from penstock.application.config.lint import cut
from penstock.application.config.loading import Loaded, loads
from penstock.application.config.references import References
from penstock.application.config.types import KnownTypes
from penstock.application.masking import masked
from penstock.client.coordinator import CoordinatorClient, PipelineStatus
from penstock.core.errors import ConditionFailed, PenstockError
from penstock.core.sizes import show_size
from penstock.dashboard.frame import (
    code,
    complain,
    confirmed,
    facts,
    fill,
    keep_keys,
    live,
    table,
    title,
    told,
    troubles,
)
from penstock.dashboard.session import Session
from penstock.protocol.api.cluster import ClusterStatus, Member, Place
from penstock.protocol.api.deployment import PASSTHROUGH, Deployed, Deployment, End

log = logging.getLogger(__name__)

# The cluster.


async def cluster(session: Session) -> None:
    status = await session.ask(lambda client: client.status())
    if status.store.bucket is None and not status.shards:
        ui.label("This is a single worker: everything is on its own disk.")
        ui.label("Workers that are started with the same --store form a cluster: see docs/cluster.md.").classes("quiet")
        return
    about = ui.column().classes("w-full")
    ui.label("Workers").classes("font-bold")
    columns = [
        ("worker", "worker"),
        ("kind", "kind"),
        ("address", "HTTP"),
        ("shards", "shards"),
        ("quiet", "last seen#"),
    ]
    members = table(columns, "worker")
    ui.label("Shards").classes("font-bold")
    shards = table([("shard", "shard#"), ("host", "at"), ("term", "term#"), ("state", "state")], "shard")

    async def update() -> None:
        found = await session.ask(lambda client: client.cluster())
        about.clear()
        with about:
            troubles(found.problems)
            facts(cluster_facts(found))
        fill(members, [member_row(one, found.shards) for one in found.workers])
        fill(shards, [shard_row(one) for one in found.shards])

    await live(update)


def cluster_facts(found: ClusterStatus) -> list[tuple[str, object]]:
    about = (("Bucket", found.url), ("Leader", found.leader or "none"), ("Asked", found.worker))
    if found.move is None:
        return [*about]
    failure = f": {found.move.failure}" if found.move.failure else ""
    return [*about, ("Last move", f"shard {found.move.shard} to {found.move.to}: {found.move.step}{failure}")]


def member_row(one: Member, places: Iterable[Place]) -> dict[str, Any]:
    """A host serves its shards in processes of their own, which are members, too."""
    shards = [each.shard for each in places if one.worker in (each.owner, each.host)]
    return {
        "worker": one.worker,
        "kind": "host" if one.wants is not None else "shard" if one.host else "worker",
        "address": one.addresses.get("http", ""),
        "shards": ", ".join(map(str, shards)) + (" (drained)" if one.is_drained else ""),
        "quiet": f"{one.quiet_seconds:.1f} s",
    }


def shard_row(one: Place) -> dict[str, Any]:
    return {
        "shard": one.shard,
        "host": one.host or one.owner,
        "term": one.term,
        "state": f"moves to {one.assigned}" if one.assigned not in ("", one.host) else "served",
    }


# Settings.


def as_yaml(deployment: Deployment) -> str:
    """As people read it: without what has its default. References to secrets stay references."""
    return "\n".join(f"{title}:\n{indent(text, '  ')}" for title, text in _parts(deployment).items())


def _parts(deployment: Deployment) -> dict[str, str]:
    """Each connector, each pipeline and the links, as YAML."""
    specs = [("connector", deployment.connectors), ("pipeline", deployment.pipelines)]
    found = {f"{kind} {name}": _dumped(_given(one)) for kind, named in specs for name, one in named.items()}
    links = sorted(f"{_end(one.source)}: {_end(one.target)}" for one in deployment.links)
    return {**found, "links": "\n".join(links)} if links else found


def _end(end: End) -> str:
    return f"{end.kind}/{end.name}/{end.port}"


_DIGEST_CHARS = 12
_NAMES = ("name", "id", "instance")
"""Of a part: in its title."""


def _given(spec: Any) -> dict[str, Any]:
    """The fields of a part that do not have their default."""
    found = {}
    for one in fields(spec):
        value = getattr(spec, one.name)
        default = one.default if one.default_factory is MISSING else one.default_factory()
        if value != default and one.name not in _NAMES:
            found[one.name] = value[:_DIGEST_CHARS] if one.name == "code" else _plain(value)
    return found


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_plain(one) for one in value]
    return _given(value) if is_dataclass(value) else value


def _dumped(found: Mapping[str, Any]) -> str:
    return yaml.safe_dump(found, sort_keys=False, allow_unicode=True).rstrip()


def difference(before: Deployment, after: Deployment) -> str:
    """What an apply would change: the lines that differ of each connector, of each pipeline and of the links; empty if
    nothing. Secrets are masked in both.
    """
    old, new = _parts(masked(before)), _parts(masked(after))
    titles = [title for title in {**old, **new} if old.get(title) != new.get(title)]
    return "\n".join(line for title in titles for line in _changed(title, old.get(title), new.get(title)))


def _changed(title: str, old: str | None, new: str | None) -> Iterable[str]:
    sign = "+" if old is None else "-" if new is None else "~"
    yield f"{sign} {title}:"
    lines = difflib.unified_diff((old or "").splitlines(), (new or "").splitlines(), lineterm="", n=0)
    without_header = islice(lines, 2, None)
    yield from (f"{line[0]}   {line[1:]}" for line in without_header if not line.startswith("@@"))


def checked(text: str, name: str, folder: Path) -> Loaded:
    """Files of functions are looked for in this folder. Nothing of the dashboard's own environment and of its other
    files gets into what is shown: variables and secrets in files are left to the worker. Raises ConfigErrors.
    """
    path = folder / Path(name).name
    return loads(text, path, KnownTypes(), {}, leaves_unset=True, reads_files=False)


def folders_of(deployment: Deployment) -> Sequence[Path]:
    """Where the application's file may be, the likeliest first: where the deployed functions are, or above; without any
    of them on this machine, where the dashboard was started. What is deployed does not say it.
    """
    files = (one.spark.rpartition(":")[0] for one in deployment.pipelines.values() if one.spark != PASSTHROUGH)
    folders = [str(Path(file).parent) for file in files if Path(file).is_file()]
    if not folders:
        return [Path.cwd()]
    nearest = Path(os.path.commonpath(folders))
    return [nearest, *nearest.parents]


def folder_of(text: str, folders: Sequence[Path]) -> Path:
    """The one that has most of the files of functions that the text names; the first of several."""
    names = _files_of_functions(text)
    return max(folders, key=lambda folder: sum(_is_file(folder / name) for name in names))


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # such as a name that is too long
        return False


def _files_of_functions(text: str) -> list[str]:
    """As they are written; none of a text that is not YAML."""
    try:
        document = parse(text, "", References({}, Path(), reads_files=False), leaves_unset=True)
    except ConfigErrors:
        return []
    sparks = (str(item.value.get("spark", "")) for item in cut(document).items if item.kind == "pipeline")
    return [spark.rpartition(":")[0] for spark in sparks]


async def settings(session: Session, folder: Path | None) -> None:
    """`folder`: that of the application's file, if it is known."""
    first = await session.ask_application(lambda client: client.application())
    about = ui.card().classes("w-full")
    former = _Former(session)
    with ui.expansion("What is deployed").classes("w-full border rounded").props("dense"):
        shown = ui.column().classes("w-full")
    last: Deployed | None = None

    async def update() -> None:
        nonlocal last
        deployed = await session.ask_application(lambda client: client.application())
        await former.update(deployed.former)
        if deployed == last:
            return
        last = deployed
        about.clear()
        with about:
            facts([*_about(deployed)])
        text = await asyncio.to_thread(as_yaml, deployed.deployment)
        shown.clear()
        with shown:
            code(text, "yaml")

    if session.may("deploy"):
        _Change(session, folder, update).build(first)
    else:
        ui.label("Your role can view the settings, but not change them.").classes("quiet")
    await live(update)


_FORMER = (
    ("pipeline", "pipeline"),
    ("state", "state"),
    ("epochs", "undelivered epochs#"),
    ("blocks", "blocks~"),
    ("sources", "of"),
)
_FORMER_MAX = 50
"""Each is a request, every two seconds. When some are dropped, others take their place."""


class _Former:
    """Pipelines that are no longer in the application, and what they block."""

    def __init__(self, session: Session) -> None:
        self._session = session
        with ui.column().classes("w-full") as self._body:
            explained = "They are no longer in it, but stay registered: sources and retention wait for them."
            may_drop = session.may("deploy")
            what_to_do = " Deploy them again, or choose one to drop it." if may_drop else ""
            title("Pipelines that the application had before", explained + what_to_do)
            self._table = table(_FORMER, "pipeline", self._drop if may_drop else None)
        self._body.set_visibility(False)

    async def update(self, names: Sequence[str]) -> None:
        self._body.set_visibility(bool(names))
        fill(self._table, await self._session.ask(partial(_former_rows, names=names[:_FORMER_MAX])) if names else [])

    async def _drop(self, row: Mapping[str, Any]) -> None:
        name = row["pipeline"]
        if row["state"] in _RUN:
            ui.notify(f"{name} still runs. It can be dropped when it has stopped.")
            return
        of = row["sources"] or "no source"
        holds = f"It has {row['epochs']} undelivered epochs and blocks {row['blocks']} of {of}."
        if not await confirmed(f"Drop pipeline {name}? {holds}", "Drop"):
            return
        try:
            await self._session.change(lambda client: client.drop(name))
        except PenstockError as error:
            told(error)
        else:
            ui.notify(f"{name} is dropped", type="positive")


_RUN = ("starting", "running")


def _former_rows(client: CoordinatorClient, names: Collection[str]) -> list[dict[str, Any]]:
    return [_former_row(one, len(client.epochs(one.name))) for one in client.pipelines() if one.name in names]


def _former_row(one: PipelineStatus, epochs: int) -> dict[str, Any]:
    return {
        "pipeline": one.name,
        "state": one.state.lower(),
        "epochs": epochs,
        "blocks": show_size(one.lag_bytes),
        "sources": ", ".join(dict.fromkeys(source for named in one.inputs.values() for source in named)),
    }


class _Change:
    """A changed application: what would differ, and the button that applies it."""

    def __init__(self, session: Session, folder: Path | None, update: Callable[[], Awaitable[None]]) -> None:
        """`update`: shows what is deployed."""
        self._session = session
        self._given_folder = folder
        self._update = update

    def build(self, first: Deployed) -> None:
        """`first`: what is deployed at the beginning."""
        title("A changed application")
        self._folders = [self._given_folder] if self._given_folder is not None else folders_of(first.deployment)
        above = " or above" if len(self._folders) > 1 else ""
        hint = f"Paste the whole YAML file. Files that it names are looked for in {self._folders[0]}{above}."
        ui.label(hint).classes("quiet")
        self._name = ui.input("Name", value=first.name or "app.yaml").props("dense outlined")
        with ui.element("div").classes("w-full") as frame:
            self._text = ui.codemirror("", language="YAML", theme="githubLight", line_wrapping=True)
            self._text.classes("w-full h-64 border rounded")
        keep_keys(frame)
        ui.button("Show what would change", on_click=self._show).props("no-caps outline")
        self._result = ui.column().classes("w-full")

    async def _show(self) -> None:
        self._result.clear()
        given, name = self._text.value, self._name.value or "app.yaml"
        with self._result:
            try:
                folder = await asyncio.to_thread(folder_of, given, self._folders)
                loaded = await asyncio.to_thread(checked, given, name, folder)
            except ConfigErrors as error:
                for mistake in error.mistakes:
                    ui.label(f"⚠ {mistake}").classes("trouble-text")
            except PenstockError as error:
                complain(error)
            except Exception as error:  # a type of another package can raise anything
                log.exception("an application cannot be checked")
                complain(PenstockError(f"it cannot be checked: {type(error).__name__}", "The log has the reason."))
            else:
                await self._compare(loaded)

    async def _compare(self, loaded: Loaded) -> None:
        """Show what differs from what is deployed now."""
        self._result.clear()
        with self._result:
            try:
                current = await self._session.ask_application(lambda client: client.application())
            except PenstockError as error:
                complain(error)
                return
            changes = await asyncio.to_thread(difference, current.deployment, loaded.deployment)
            for note in loaded.notes:
                ui.label(note)
            if changes:
                code(changes, "diff")
            else:
                ui.label("Nothing would change, except perhaps secrets, which are not compared.")
            ui.button("Apply", on_click=lambda: self._apply(loaded, current.revision)).props("no-caps")

    async def _apply(self, loaded: Loaded, revision: int) -> None:
        """Only to the revision that the shown changes are about."""
        if not await confirmed("Apply these changes? Everything else keeps running.", "Apply"):
            return
        deployment, name = loaded.deployment, loaded.file.name
        try:
            done = await self._session.ask_application(lambda client: client.apply(deployment, name, revision))
        except ConditionFailed as error:
            told(error)
            await self._compare(loaded)
            return
        except PenstockError as error:
            told(error)
            return
        ui.notify(f"Revision {done['revision']} is deployed", type="positive")
        self._result.clear()
        with self._result:
            for sentence in done.get("notes", ()):
                ui.label(sentence)
        with suppress(PenstockError):  # the page says so, and asks again
            await self._update()


def _about(deployed: Deployed) -> Iterable[tuple[str, object]]:
    if not deployed.revision:
        yield "Application", "none is deployed"
        return
    yield "Application", deployed.name or "without a name"
    yield "State", deployed.state + (f": {deployed.reason}" if deployed.reason else "")
    yield "Revision", deployed.revision
    yield "Connectors", ", ".join(deployed.deployment.connectors) or "none"
    yield "Pipelines", ", ".join(deployed.deployment.pipelines) or "none"
