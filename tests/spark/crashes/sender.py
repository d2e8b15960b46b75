"""A program that sends numbered messages on a few streams until a file exists. It ends when all are acknowledged,
and prints how many there are on each stream.

python -m tests.spark.crashes.sender HOST:PORT RATE THERE FILE
"""

import sys
import time
from collections.abc import Iterator
from functools import partial
from itertools import count
from pathlib import Path

from penstock.client import Message, Source

SOURCE = "letters"
STREAMS = ("a", "b", "c", "d")
KEYS = 7


def text(stream: str, number: int) -> bytes:
    return b"%s:%d:" % (stream.encode(), number) + b"." * (number % 50)


def key(number: int) -> bytes:
    return b"key-%d" % (number % KEYS)


class Pace:
    """This many numbers per second are due, after those that are stored, up to the last one, which is known when the
    file exists.
    """

    def __init__(self, rate: float, there: int, end: Path) -> None:
        self._rate, self._there, self._end = rate, there, end
        self._began = time.monotonic()
        self.last: int | None = None

    def is_due(self, number: int) -> bool:
        return number <= self._due

    def is_over(self, number: int) -> bool:
        """The last number is the last that is due: no stream has sent more."""
        if self.last is None and self._end.exists():
            self.last = self._due
        return self.last is not None and number > self.last

    @property
    def _due(self) -> int:
        return self._there + int((time.monotonic() - self._began) * self._rate)


def main(address: str, rate: float, there: int, end: Path) -> None:
    pace = Pace(rate, there, end)
    source = Source(address, source=SOURCE, poll_seconds=0.05, retry_seconds=600)

    def numbers(stream: str, after: int | None) -> Iterator[Message | None]:
        for number in count((after or 0) + 1):
            while not pace.is_due(number) and not pace.is_over(number):
                yield None
            if pace.is_over(number):
                return
            yield Message(number, text(stream, number), number, key(number))

    for stream in STREAMS:
        source.stream(stream, partial(numbers, stream))
    source.run()
    print(pace.last)


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4]))
