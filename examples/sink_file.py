"""Appends a pipeline's output to a file, a line for each message, exactly once, however often it is killed.

python examples/sink_file.py FILE [HOST:PORT]
"""

import sys
from contextlib import suppress

from penstock.client.sink import DataFile, Sink, Transaction, lines


def main(path: str, address: str) -> None:
    def report(transaction: Transaction) -> None:
        print(f"{transaction.id.decode()}: {transaction.end - transaction.start} bytes are committed", flush=True)

    # Uncommitted data that a killed run has left in the file is removed at the next start.
    sink = Sink(address, DataFile(path), state=f"{path}.state", encode=lines, on_commit=report)
    with suppress(KeyboardInterrupt):
        sink.run(lambda listening: print(f"listening on {listening}", flush=True))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else "127.0.0.1:7200")
