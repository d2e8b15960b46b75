"""`penstock segment`: look at segments and change them."""

import typer

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
for _verb in (info, create, append, cat, seal, truncate, delete, verify):
    app.command(_verb.__name__)(_verb)
