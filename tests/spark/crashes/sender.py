"""A program that sends numbered messages on a few streams, and ends when all are acknowledged.

python -m tests.spark.crashes.sender HOST:PORT MESSAGES_PER_STREAM RATE
"""

import sys
import time
from collections.abc import Iterator
from functools import partial

from penstock.client import Message, Source

SOURCE = "letters"
STREAMS = ("a", "b", "c", "d")
KEYS = 7


def text(stream: str, number: int) -> bytes:
    return b"%s:%d:" % (stream.encode(), number) + b"." * (number % 50)


def key(number: int) -> bytes:
    return b"key-%d" % (number % KEYS)


def main(address: str, last: int, rate: float) -> None:
    began = time.monotonic()
    source = Source(address, source=SOURCE, poll_seconds=0.05, retry_seconds=600)

    def numbers(stream: str, after: int | None) -> Iterator[Message | None]:
        for number in range((after or 0) + 1, last + 1):
            while time.monotonic() < began + number / rate:
                yield None
            yield Message(number, text(stream, number), number, key(number))

    for stream in STREAMS:
        source.stream(stream, partial(numbers, stream))
    source.run()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]))
