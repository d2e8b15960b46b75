"""A progress line: what a command waits for, and how long it has waited. On a terminal only."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn


@contextmanager
def waiting(text: str, *, auto_refresh: bool = True) -> Iterator[Callable[[str], None]]:
    """Yields a function that changes the text. The line disappears at the end. Without `auto_refresh` there is no
    thread, and only that function redraws the line.
    """
    columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn())
    console = Console(stderr=True, highlight=False)
    with Progress(
        *columns, console=console, transient=True, auto_refresh=auto_refresh, disable=not console.is_terminal
    ) as progress:
        task = progress.add_task(text, total=None)
        yield lambda changed: progress.update(task, description=changed, refresh=True)
