"""One call of a connector's `deliver`, and what its answer means for the breakers."""

import logging
from collections.abc import Sequence
from typing import NamedTuple

from penstock.connectors.api import Outgoing, StreamGone, StreamLost, StreamRef
from penstock.core.errors import PenstockError
from penstock.delivery.outbox.host import SinkHost
from penstock.delivery.outbox.joining import Leaving
from penstock.delivery.outbox.rows import metadata_of, times_of
from penstock.delivery.sink import SinkLost

log = logging.getLogger(__name__)


class Refused(NamedTuple):
    """Nothing of it has left: it `is_gone` for ever, or it is to be held. With `places` only the values there are gone,
    and the others have left.
    """

    reason: str
    is_gone: bool
    places: Sequence[int] | None = None


async def give(host: SinkHost, stream: StreamRef | None, leaving: Leaving) -> Refused | None:
    """None: all of it has left. Raises SinkLost when the connector as a whole takes nothing now."""
    outgoing = outgoing_of(stream, leaving)
    async with host.calling:
        # Here, and not when it was decided to give it: whatever was said until now counts.
        if not host.breakers.admits(host.name, stream):
            return refusal(host, stream)
        try:
            await host.deliver(outgoing)
        except StreamGone as error:
            host.breakers.delivered(host.name, None)  # it has answered
            host.events_out += len(leaving.rows) - len(leaving.rows_at(error.places))
            return Refused(str(error), is_gone=True, places=error.places)
        except StreamLost as error:
            return _stream_lost(host, stream, str(error))
        except Exception as error:
            raise _lost(host, error) from error
        host.breakers.delivered(host.name, stream)
    host.events_out += len(leaving.rows)
    return None


def refusal(host: SinkHost, stream: StreamRef | None) -> Refused:
    """Why it is not given now. Raises SinkLost when that is not for this stream alone."""
    reason = host.breakers.whole(host.name)
    if reason is not None:
        raise SinkLost(f"connector {host.name}: {reason}")
    return Refused(host.breakers.own_refusal(host.name, stream) or "it is closed", is_gone=False)


def _stream_lost(host: SinkHost, stream: StreamRef | None, reason: str) -> Refused:
    is_probe = host.breakers.probe(host.name) == (None,)
    if stream is None or is_probe:
        host.breakers.lost(host.name, reason, host.clock())
    if stream is None:
        raise SinkLost(f"connector {host.name}: {reason}")
    host.breakers.failed(host.name, stream, reason, host.clock())
    return Refused(reason, is_gone=False)


def _lost(host: SinkHost, error: Exception) -> SinkLost:
    if not isinstance(error, PenstockError | OSError):
        log.error("connector %s has failed", host.name, exc_info=error)
    reason = str(error) or type(error).__name__
    host.breakers.lost(host.name, reason, host.clock())
    return SinkLost(f"connector {host.name}: {reason}")


def outgoing_of(stream: StreamRef | None, leaving: Leaving) -> Outgoing:
    """Under the name of its last row: that stays, and where fewer or more rows are joined after a crash, one that was
    taken before holds no row that was not.
    """
    last, end = leaving.last_rows, leaving.rows[-1]
    return Outgoing(
        stream=stream,
        values=leaving.values,
        ids=[row.event_id if stream is not None else 0 for row in last],
        keys=() if leaving.is_joined else [row.key for row in last],
        event_times_us=() if leaving.is_joined else times_of(last),
        metadata=() if leaving.is_joined else metadata_of(last),
        name=f"{end.epoch}/{end.row.number}",
    )
