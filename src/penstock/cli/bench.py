"""`penstock bench`: measure, beside others, in one run."""

import typer

app = typer.Typer(help="Benchmarks: ratios inside one run.", no_args_is_help=True)


@app.callback()
def bench() -> None:
    pass
