"""With any limit, a cut takes the records of connectors in order of arrival, and always takes something."""

import asyncio

from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.protocol.api.pipelines import Limits
from tests.coordinator.scene import Scene

SEGMENTS = ("connector/s/0", "connector/s/1", "connector/t/0")

records = st.lists(st.tuples(st.integers(0, 2), st.integers(1, 12)), min_size=1, max_size=40)
"""Of each record, its segment and its number of events."""
limits = st.builds(Limits, bytes=st.none() | st.integers(0, 3000), rows=st.none() | st.integers(0, 60))


@settings(max_examples=60)
@given(records, limits)
def test_cuts_take_records_in_order_of_arrival(came: list[tuple[int, int]], allowed: Limits) -> None:
    asyncio.run(_run(came, allowed))


async def _run(came: list[tuple[int, int]], allowed: Limits) -> None:
    scene = Scene()
    await scene.open()
    try:
        scene.create(*SEGMENTS)
        placed = []
        for segment, count in came:
            times = dict.fromkeys(range(100 * segment, 100 * segment + count), 5)
            placed.append((SEGMENTS[segment], await scene.ingest(SEGMENTS[segment], times)))
        await scene.start(source=["s", "t"], outputs=(), limits=allowed)
        at, done, size = await scene.initial(), 0, 0
        while done < len(placed):
            at = (await scene.cut(at)).offset
            taken = [at.segments.get(name, 0) >= end for name, end in placed]
            now = sum(taken)
            assert taken == [True] * now + [False] * (len(placed) - now), "all that came before what is left"
            assert now > done
            before, size = size, sum(at.segments.values())
            assert allowed.bytes is None or size - before <= allowed.bytes or now == done + 1
            done = now
    finally:
        await scene.close()
