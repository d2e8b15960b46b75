"""`penstock segment`: look at segments and change them."""

import typer

app = typer.Typer(help="Look at segments and change them.", no_args_is_help=True)
