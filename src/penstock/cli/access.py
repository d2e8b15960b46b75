"""`penstock access`: who may use a worker. The commands edit the access file in its data directory, so they run on the
worker's machine; the worker picks up a change within a second. A worker of a cluster writes it to the bucket as well.
If it is stopped, the commands do that: the bucket's list replaces the file when the worker starts.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from penstock.access.file import TOKEN_FILE, AccessFile, StoredGrant
from penstock.access.principals import ANONYMOUS
from penstock.backup.contents import JOURNAL
from penstock.bucket.stores import open_bucket
from penstock.cli.connect import JsonOption, report
from penstock.cli.texts import parse_size
from penstock.client.credentials import OWN_DATA
from penstock.core.errors import BucketFailed, RequestError, StoreInUse
from penstock.core.sizes import show_size
from penstock.store.files import RealFiles
from penstock.worker.cluster_access import ClusterAccess
from penstock.worker.settings import STORE_FILE

app = typer.Typer(help="Decide who may use a worker; runs on the worker's machine.", no_args_is_help=True)


def register(commands: typer.Typer) -> None:
    commands.add_typer(app, name="access")


DataOption = Annotated[Path, typer.Option("--data", metavar="DIR", help="The worker's data directory.")]


@app.command("add")
def add(
    name: Annotated[
        str, typer.Argument(help="The new principal's name; anonymous stands for clients without a token.")
    ],
    role: Annotated[
        str, typer.Option(metavar="read|write|deploy|admin", help="What it may do; each role includes those before it.")
    ],
    prefix: Annotated[
        list[str] | None,
        typer.Option(help="Only for names with this prefix; may be repeated. Default: for all names."),
    ] = None,
    certificate: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="It authenticates with a client certificate of this name (mutual TLS), not a token."
        ),
    ] = None,
    quota: Annotated[
        int | None,
        typer.Option(parser=parse_size, metavar="SIZE", help="What its sources and segments may hold in total."),
    ] = None,
    data: DataOption = OWN_DATA,
    as_json: JsonOption = False,
) -> None:
    """Add a principal, and print its token.

    The token is printed once and stored nowhere: put it into a file that
    only its owner can read, and name the file in PENSTOCK_TOKEN_FILE.
    """
    with _changing(data) as file:
        token = file.add(
            StoredGrant(name=name, role=role, prefixes=prefix or [], certificate=certificate, quota_bytes=quota)
        )
    if as_json:
        typer.echo(json.dumps({"principal": name, "role": role, "token": token or None}))
    elif token:
        typer.echo(token)
    elif name == ANONYMOUS:
        typer.echo("added anonymous: clients without a token have this role", err=True)
    else:
        typer.echo(f"added {name}: clients with a certificate for {certificate}", err=True)


@app.command("list")
def list_principals(data: DataOption = OWN_DATA, as_json: JsonOption = False) -> None:
    """List the principals besides the owner, whose token is in DATA/token."""
    grants = _file(data).grants()
    if as_json:
        typer.echo(json.dumps([_as_json(grant) for grant in grants]))
        return
    table = Table("principal", "role", "names", "authenticated by", "quota")
    for grant in grants:
        names = ", ".join(f"{prefix}…" for prefix in grant.prefixes) or "all"
        quota = "" if grant.quota_bytes is None else show_size(grant.quota_bytes)
        table.add_row(escape(grant.name), grant.role, escape(names), escape(_proof(grant)), quota)
    Console().print(table if grants else "no principals besides the owner")


@app.command("revoke")
def revoke(name: str, data: DataOption = OWN_DATA, as_json: JsonOption = False) -> None:
    """Remove a principal: its token or certificate is refused from now on."""
    with _changing(data) as file:
        file.revoke(name)
    report(f"revoked {name}", as_json=as_json, principal=name, revoked=True)


@app.command("rotate")
def rotate(data: DataOption = OWN_DATA, as_json: JsonOption = False) -> None:
    """Replace the owner's token, which is in DATA/token.

    The former one is refused within a second; on the other machines of a
    cluster, which get the new one in their DATA/token, within ten seconds.
    """
    with _changing(data) as file:
        file.rotate_owner_token()
    file_name = str(data / TOKEN_FILE)
    report(f"the owner's new token is in {file_name}", as_json=as_json, token_file=file_name)


@contextmanager
def _changing(data: Path) -> Iterator[AccessFile]:
    """Of a stopped worker of a cluster: the bucket's list, which is written back at the end. Raises RequestError."""
    file, store = _file(data), data / STORE_FILE
    if not store.exists() or (data / JOURNAL).exists() or _is_running(data):
        yield file
        return
    url = store.read_text().strip()
    try:
        shared = ClusterAccess(open_bucket(url), data)
        shared.begin()
        yield file
        shared.look()
    except BucketFailed as error:
        raise RequestError(
            f"the worker of {data} is stopped, and the access list of its cluster in {url} cannot be changed: {error}",
            "Start the worker first, or set the credentials of the store as for penstock worker.",
        ) from None


def _is_running(data: Path) -> bool:
    files = RealFiles(data)
    try:
        files.lock()
    except StoreInUse:
        return True
    finally:
        files.close()
    return False


def _file(data: Path) -> AccessFile:
    if not data.is_dir():
        raise RequestError(f"{data} not found", "Name the worker's data directory: --data DIR")
    return AccessFile(data)


def _proof(grant: StoredGrant) -> str:
    if grant.certificate is not None:
        return f"certificate {grant.certificate}"
    return "token" if grant.token_sha256 else "nothing"


def _as_json(grant: StoredGrant) -> dict[str, object]:
    return {
        "name": grant.name,
        "role": grant.role,
        "prefixes": grant.prefixes,
        "certificate": grant.certificate,
        "quota_bytes": grant.quota_bytes,
    }
