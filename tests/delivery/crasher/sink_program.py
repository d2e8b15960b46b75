"""A sink program that appends a line for each message to a file.

python -m tests.delivery.crasher.sink_program FILE HOST:PORT
"""

import sys
from contextlib import suppress

from penstock.client.sink import DataFile, Sink, lines

if __name__ == "__main__":
    path, address = sys.argv[1:]
    with suppress(KeyboardInterrupt):
        Sink(address, DataFile(path), state=f"{path}.state", encode=lines).run()
