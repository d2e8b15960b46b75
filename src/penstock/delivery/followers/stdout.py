"""`stdout:`: what a pipeline puts out, on the worker's standard output."""

import sys
from dataclasses import dataclass

from penstock.connectors.callback import RowFormat
from penstock.connectors.sink_api import Block, SinkLost
from penstock.connectors.threaded import BlockByBlock


@dataclass(frozen=True, slots=True, kw_only=True)
class StdoutOptions:
    format: RowFormat = RowFormat.LINES


class StdoutSink(BlockByBlock):
    """At least once: what was printed before a crash is printed again."""

    def __init__(self, options: StdoutOptions, name: str) -> None:
        super().__init__(_Printer(options.format), name)


class _Printer:
    def __init__(self, row_format: RowFormat) -> None:
        self._format = row_format

    def take(self, name: str, block: Block) -> None:  # noqa: ARG002  nobody reads names on a terminal
        try:
            sys.stdout.buffer.write(self._format.encode(block))
            sys.stdout.buffer.flush()
        except (OSError, ValueError) as error:  # ValueError: it is closed
            raise SinkLost(f"the worker's standard output cannot be written: {error}") from None

    def interrupt(self) -> None:
        """A terminal or a pipe that nobody reads holds the thread until somebody does."""

    def close(self) -> None:
        """It is the worker's."""
