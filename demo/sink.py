"""The demo's sink, a program of its own: it votes on every epoch, and appends what is committed to a file.

python -m demo.sink FILE HOST:PORT
"""

import sys
from contextlib import suppress

from penstock.client.sink import DataFile, Sink, lines

if __name__ == "__main__":
    path, address = sys.argv[1:]
    sink = Sink(address, DataFile(path), state=f"{path}.state", encode=lines)
    with suppress(KeyboardInterrupt):
        sink.run()
