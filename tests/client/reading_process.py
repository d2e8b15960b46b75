"""Run as a process, as if on another machine: reads a range, and prints the digest of its bytes. Its log is on stderr.

python reading_process.py ADDRESS SEGMENT START END
"""

import hashlib
import logging
import sys
from contextlib import closing

from penstock.client.segments import short_circuit
from penstock.client.segments.range_reader import read_range
from penstock.client.segments.short_circuit import ShortCircuit
from penstock.core.address import Address
from penstock.spark.sink.staging import Link


def main(address: str, segment: str, start: str, end: str) -> None:
    logging.basicConfig(level=logging.INFO)
    setattr(short_circuit, "this_machine", lambda: "another machine")  # noqa: B010  it is another module's name
    link = Link(lambda: Address.parse(address))
    digest = hashlib.sha256()
    with closing(read_range(link, segment, int(start), int(end), files=ShortCircuit())) as pieces:
        for piece in pieces:
            digest.update(piece.data)
            del piece
    link.drop()
    print(digest.hexdigest())


if __name__ == "__main__":
    main(*sys.argv[1:])
