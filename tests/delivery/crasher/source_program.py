"""A source program that sends its streams at a steady rate. It ends when everything is acknowledged.

python -m tests.delivery.crasher.source_program HOST:PORT PROGRAM MESSAGES_A_STREAM RATE
"""

import sys
import time
from collections.abc import Iterator
from functools import partial

from penstock.client import Message, Source
from tests.delivery.crasher.events import STREAMS, Line, key, text

RETRY_SECONDS = 600


def main(address: str, program: str, last: int, rate: float) -> None:
    source = Source(address, source=program, poll_seconds=0.05, retry_seconds=RETRY_SECONDS)

    def numbers(line: Line, after: int | None) -> Iterator[Message | None]:
        first = (after or 0) + 1
        began = time.monotonic()
        for number in range(first, last + 1):
            while time.monotonic() < began + (number - first) / rate:
                yield None
            yield Message(number, text(line, number), number, key(line, number).encode())

    for stream in STREAMS:
        source.stream(stream, partial(numbers, Line(program, stream)))
    source.run()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4]))
