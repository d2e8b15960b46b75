"""Sends the lines of a file as a stream, each exactly once, however often it is interrupted and run again.

python examples/send_file.py FILE [HOST:PORT]
"""

import sys
from collections.abc import Iterator
from pathlib import Path

from penstock.client import Message, Source


def main(path: Path, address: str) -> None:
    def lines(after: int | None) -> Iterator[Message]:
        with path.open("rb") as file:
            file.seek(after or 0)  # a message's id is where its line ends: the place to continue from
            while (line := file.readline()).endswith(b"\n"):  # a last line without its end may still grow
                yield Message(file.tell(), line.rstrip(b"\n"))

    source = Source(address, source="files", on_ack=lambda name, end: print(f"{name}: {end} bytes are safe"))
    stream = source.stream(path.name, lines)
    source.run()
    print(f"{stream.sent} lines sent")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else "127.0.0.1:7100")
