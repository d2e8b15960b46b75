"""Event times of codecs that have no scanner of Penstock's own: plugins, by entry points.

    [project.entry-points."penstock.event_times"]
    avro = "my_package:AvroTimes"

`AvroTimes("order.time")` is called once for a source whose codec is `avro`, with the field of its event time. The
result is called with a block of events, as bytes. It returns for each of them the value of the field: an int, a float,
a str or a datetime; None if there is none. It treats events independently, and raises if one of them is invalid.
"""

from collections.abc import Callable, Sequence
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import cast

from penstock.core.errors import RequestError

GROUP = "penstock.event_times"


@cache
def installed() -> dict[str, EntryPoint]:
    """Codec → its plugin. Read once: packages are installed before a worker starts."""
    return {point.name: point for point in entry_points(group=GROUP)}


def codecs_with_plugins() -> tuple[str, ...]:
    return tuple(sorted(installed()))


def field_values(codec: str, field: str) -> Callable[[Sequence[bytes]], Sequence[object]] | None:
    """The plugin of this codec for this field; None if there is none. Raises RequestError if it cannot be loaded."""
    point = installed().get(codec)
    if point is None:
        return None
    try:
        return cast("Callable[[Sequence[bytes]], Sequence[object]]", point.load()(field))
    except Exception as error:  # a third party's module can raise anything
        package = point.dist.name if point.dist is not None else codec
        raise RequestError(
            f"the event times of codec {codec} cannot be loaded: {str(error) or type(error).__name__}",
            f"Install it again: pip install {package}",
        ) from error
