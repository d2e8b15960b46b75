"""The watermarks that a reader of pipelines' outputs inherits: each is its pipeline's, at the reader's own place."""

from collections.abc import Callable, Iterable, Mapping

from penstock.coordinator.machine.state import Pipeline, State
from penstock.coordinator.messages import Segments
from penstock.coordinator.watermark.output_log import Row
from penstock.protocol.stored.names import REPLAY_PREFIX, Form, Source

Find = Callable[[str, Pipeline | None, str, int], Row | None]


def inherited(
    state: State,
    sources: Iterable[str],
    positions: Segments,
    before: Mapping[str, int | None],
    find: Find,
    end: Callable[[str], int],
) -> dict[str, int | None]:
    """By source, of those of these sources that are outputs; None for one that has no watermark yet.

    Where nothing is known of the place any more, it is as it was `before`. An output whose pipeline is not registered
    is as a stream that has ended: once it is read to its `end`, it does not count.
    """
    found: dict[str, int | None] = {}
    for source in sorted(sources):
        parsed = Source.parse(source)
        producer, _, port = parsed.name.partition("/")
        segment = parsed.segment
        if parsed.form is not Form.OUTPUT or segment is None or port.startswith(REPLAY_PREFIX):
            continue  # letters that are sent through again are late by nature: nobody waits for them
        at, pipeline = positions.get(segment, 0), state.pipelines.get(producer)
        row = find(producer, pipeline, port, at)
        if pipeline is None and (row is None or at >= end(segment)):
            continue
        found[source] = before.get(source) if row is None else row.watermark
    return found
