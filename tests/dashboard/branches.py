"""A pipeline without Spark, with what pages show of one: a late stream, windows, and a sink that refuses an epoch."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from penstock.client.coordinator import BucketNumbers, CoordinatorClient, SinkSpec
from penstock.client.segments import SegmentClient
from penstock.client.sink import DataFile, Sink
from tests.client.sink.running_sink import RunningSink
from tests.delivery.merging import Merging
from tests.support.open_stream import open_stream
from tests.support.waiting import until

SOURCE, PIPELINE = "branches", "takings"
NEWEST_MS = 1_763_560_100_000
LATE_MS = 100_000


class Refusing(DataFile):
    """A full disk: the sink votes no."""

    def sync(self) -> None:
        raise OSError(28, "No space left on device")


@contextmanager
def branches(client: CoordinatorClient, segments: SegmentClient, connector_port: int, folder: Path) -> Iterator[int]:
    """Programs stay connected, and the sink is asked again, until the end. Yields the generation of its driver."""
    with ExitStack() as stack:
        north, harbour = (
            stack.enter_context(open_stream(connector_port, SOURCE, name)) for name in ("north", "harbour")
        )
        north.send(1, NEWEST_MS)
        harbour.send(1, NEWEST_MS - LATE_MS)
        until(lambda: SOURCE in (known := client.status().sources) and known[SOURCE].messages == 2)
        full = RunningSink(Sink("127.0.0.1:0", Refusing(folder / "full"), state=folder / "full.state"))
        stack.callback(full.stop)
        sinks = {"archive": f"file:{folder}/archive", "full": f"connector://{full.address}"}
        client.bind(PIPELINE, {name: SinkSpec("out", url) for name, url in sinks.items()})
        merging = Merging(client, segments, PIPELINE, source=SOURCE)
        until(lambda: all(one.state == "READY" for one in client.sinks() if one.pipeline == PIPELINE))
        epoch = merging.epoch([b'{"branch": "north"}', b'{"branch": "harbour"}'])
        held = {"open_windows": 2, "keys": 3, "state_bytes": 2048, "late_kept": 4, "late_dropped": 1, "waiting": 6}
        numbers = BucketNumbers(bucket=0, **held, first_end=NEWEST_MS * 1000, next_time=NEWEST_MS * 1000)
        client.report_windows(PIPELINE, "per branch", epoch, [numbers], generation=merging.generation)
        yield merging.generation
