"""A source program of the demo: three streams at a steady rate. When everything is acknowledged it says that it has
ended for good, so that the last windows close.

python -m demo.source HOST:PORT HTTP_HOST:PORT PROGRAM EVENTS_PER_STREAM RATE
"""

import sys
import time
from collections.abc import Iterator

from demo.events import STREAMS, event
from penstock.client import Message, Source


class Meter:
    """One stream, at `rate` events a second; what was missed while there was no worker is caught up with."""

    def __init__(self, program: str, stream: str, last: int, rate: float) -> None:
        self._program, self._stream, self._last, self._rate = program, stream, last, rate
        self._began = time.monotonic()

    def __call__(self, after: int | None) -> Iterator[Message | None]:
        first = (after or 0) + 1
        self._began = max(self._began, time.monotonic() - first / self._rate)
        for number in range(first, self._last + 1):
            while time.monotonic() < self._began + number / self._rate:
                yield None
            made = event(self._program, self._stream, number)
            yield Message(number, str(made.amount).encode(), made.time_ms, made.key.encode())


def main(address: str, http: str, program: str, per_stream: int, rate: float) -> None:
    source = Source(address, source=program, program="demo", http=http, poll_seconds=0.05)
    for stream in STREAMS:
        source.stream(stream, Meter(program, stream, per_stream, rate))
    source.run()
    source.finish()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]), float(sys.argv[5]))
