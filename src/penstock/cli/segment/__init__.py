"""`penstock segment`: look at segments and change them."""

import os
from pathlib import Path

import typer

from penstock.cli.connect import TLS_VARIABLES
from penstock.cli.segment.append import append
from penstock.cli.segment.cat import cat
from penstock.cli.segment.create import create
from penstock.cli.segment.delete import delete
from penstock.cli.segment.info import info
from penstock.cli.segment.list import list_segments
from penstock.cli.segment.seal import seal
from penstock.cli.segment.truncate import truncate
from penstock.cli.segment.verify import verify

app = typer.Typer(help="Look at segments and change them.", no_args_is_help=True)
app.command("list")(list_segments)


@app.callback()
def segment(
    tls_ca: Path | None = typer.Option(None, envvar="PENSTOCK_TLS_CA", help="The worker's certificate authority."),
    tls_cert: Path | None = typer.Option(None, envvar="PENSTOCK_TLS_CERT", help="Our certificate, for mutual TLS."),
    tls_key: Path | None = typer.Option(None, envvar="PENSTOCK_TLS_KEY", help="Its private key."),
) -> None:
    for variable, file in zip(TLS_VARIABLES, (tls_ca, tls_cert, tls_key), strict=True):
        if file is not None:
            os.environ[variable] = str(file)


for _verb in (info, create, append, cat, seal, truncate, delete, verify):
    app.command(_verb.__name__)(_verb)
