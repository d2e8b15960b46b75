"""Follows all files of a directory: each is a stream, new lines are sent as they are written, new files are found.

python examples/tail_directory.py DIRECTORY [HOST:PORT]
"""

import math
import sys
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

from penstock.client import Message, Source


def follow(path: Path, after: int | None) -> Iterator[Message | None]:
    with path.open("rb") as file:
        end = file.seek(after or 0)
        while True:
            if (line := file.readline()).endswith(b"\n"):
                end += len(line)
                yield Message(end, line.rstrip(b"\n"))
            else:  # no line, or half of one
                file.seek(end)
                yield None


def main(directory: Path, address: str) -> None:
    source = Source(address, source="logs", retry_seconds=math.inf)
    source.discover(lambda: ((path.name, partial(follow, path)) for path in sorted(directory.glob("*.log"))))
    with suppress(KeyboardInterrupt):
        source.run()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else "127.0.0.1:7100")
