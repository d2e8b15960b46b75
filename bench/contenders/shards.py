"""Several shards on this machine's disk, each in a process of its own, or all of them in one, each in a thread with its
own event loop: `processes|threads DIRECTORY SHARDS`. Each shard writes its ports to `DIRECTORY/N.json`.
"""

import json
import multiprocessing
import signal
import sys
import threading
from functools import partial
from pathlib import Path

from bench.contenders.shard import main as serve


def main(how: str, directory: Path, shards: int) -> None:
    places = directory / "map.json"
    places.write_text(json.dumps({"places": {}, "addresses": {}}))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())  # which ends the processes of the others
    kind = threading.Thread if how == "threads" else multiprocessing.get_context("spawn").Process
    for number in range(shards):
        report = partial(_report, directory / f"{number}.json")
        data = directory / f"shard-{number}"
        data.mkdir()
        kind(target=serve, args=(data, places, number, report), daemon=True).start()
    signal.pause()


def _report(path: Path, ports: dict[str, int]) -> None:
    path.with_suffix(".new").write_text(json.dumps(ports))
    path.with_suffix(".new").rename(path)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]))
