"""Rows at the door of a hosted connector: they leave, or are held, or are dead letters. Then they are done with."""

from itertools import groupby

from penstock.connectors.api import StreamRef
from penstock.delivery.outbox.given import Givens
from penstock.delivery.outbox.giving import give
from penstock.delivery.outbox.held import Held
from penstock.delivery.outbox.host import SinkHost
from penstock.delivery.outbox.joining import Flow, Leaving, Waiting, bad_rows
from penstock.delivery.outbox.rows import size_of
from penstock.delivery.sink import SinkLost


class Departing:
    """Of one outflow. Rows are done with when all before them in their stream are: so those that leave go first, and
    what becomes of the others is written behind that.
    """

    def __init__(self, held: Held, givens: Givens) -> None:
        self._held = held
        self._givens = givens

    async def depart(self, host: SinkHost, stream: StreamRef | None, leaving: Leaving, behind: list[Waiting]) -> bool:
        """False: they are held, and so are those `behind` them. Raises SinkLost, NoRoom: then they are given again."""
        refused = await give(host, stream, leaving)
        if refused is not None and not refused.is_gone:
            assert stream is not None, "what comes from no stream is refused with the whole"
            self.hold(host, stream, leaving.rows + behind)
            return False
        if refused is not None:
            self._bury(host, stream, dict.fromkeys(leaving.rows_at(refused.places), refused.reason))
        self._done(stream, leaving.rows)
        return True

    async def depart_good(self, host: SinkHost, stream: StreamRef | None, rows: list[Waiting]) -> None:
        """Some of them no interceptor lets out: these are dead letters. The others leave, and wait no longer."""
        assert host.chain is not None
        letters = bad_rows(host.chain, rows)
        leaving = _flushed(host, [one for one in rows if one not in letters])
        refused = None if leaving is None else await give(host, stream, leaving)
        if refused is not None and not refused.is_gone:
            assert stream is not None, "what comes from no stream is refused with the whole"
            self.hold(host, stream, rows)
            return
        if refused is not None and leaving is not None:
            letters |= dict.fromkeys(leaving.rows_at(refused.places), refused.reason)
        self._bury(host, stream, {one: letters[one] for one in rows if one in letters})
        self._done(stream, rows)

    def hold(self, host: SinkHost, stream: StreamRef, rows: list[Waiting]) -> None:
        """Raises SinkLost when that is too much, NoRoom."""
        size, limit = size_of(one.row for one in rows), host.spec.breaker.held_bytes_max
        if host.held_bytes + size > limit:
            raise SinkLost(
                f"connector {host.name} holds {host.held_bytes:,} bytes of closed streams, the limit is {limit:,}",
                "It goes on when some of them are open again; or raise breaker: held_max.",
            )
        for epoch, run in _runs(rows):
            self._held.hold(epoch, stream, [one.row for one in run])
        self._done(stream, rows)

    def _bury(self, host: SinkHost, stream: StreamRef | None, letters: dict[Waiting, str]) -> None:
        """Each with its reason, in order. Those before them in their stream have left."""
        for (epoch, reason), run in groupby(letters, key=lambda one: (one.epoch, letters[one])):
            self._held.bury(epoch, stream, [one.row for one in run], reason)
        host.letters += len(letters)

    def _done(self, stream: StreamRef | None, rows: list[Waiting]) -> None:
        for epoch, run in _runs(rows):
            self._givens[epoch].leave(stream, [one.row for one in run])


def _flushed(host: SinkHost, rows: list[Waiting]) -> Leaving | None:
    """All of them, through interceptors of their own."""
    assert host.chain is not None
    flow = Flow(host.chain())
    parts = [flow.feed(epoch, [one.row for one in run], host.clock()) for epoch, run in _runs(rows)]
    return Leaving.of([*parts, flow.flush()])


def _runs(rows: list[Waiting]) -> list[tuple[str, list[Waiting]]]:
    """By epoch, in order."""
    return [(epoch, [*run]) for epoch, run in groupby(rows, key=lambda one: one.epoch)]
