"""Appends the lines of a file to a segment, each exactly once, however often it is interrupted and run again.

python examples/import_lines.py FILE SEGMENT [HOST:PORT]
"""

import sys
import uuid
from itertools import islice
from pathlib import Path

from penstock.client.segments import SegmentClient


def main(path: Path, segment: str, address: str) -> None:
    # The writer id is derived from the file, so the next run continues where the last one stopped.
    writer = uuid.uuid5(uuid.NAMESPACE_URL, path.absolute().as_uri())
    with SegmentClient(address) as client, path.open("rb") as lines:
        client.create(segment, exist_ok=True)
        with client.appender(segment, writer_id=writer) as appender:
            stored = appender.last_number or 0
            for line in islice(lines, stored, None):
                appender.append(line.rstrip(b"\n"))
        print(f"{stored} lines were there, {(appender.acknowledged or 0) - stored} are new")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3] if len(sys.argv) > 3 else "127.0.0.1:7101")
