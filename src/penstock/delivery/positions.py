"""Compares a voting sink's data with the ledger's decisions: do they match, or is one of them an older copy?"""

from enum import Enum
from typing import NamedTuple

from penstock.connectors.sink_api import Position, SinkReport, attempt_of, epoch_of


class Fit(Enum):
    CONTINUE = "continue"
    """The sink has exactly what was decided for it."""
    OLDER = "older"
    """The sink lacks something that was decided for it: delivery would leave a gap."""
    NEWER = "newer"
    """The sink has something that was never decided for it: delivery would repeat it."""


class Decided(NamedTuple):
    """The ledger's record of a sink."""

    transaction: bytes
    """The last one that was decided; see `Sink.decided`."""
    sent: int
    attempts: int
    """The last attempt of the worker: every attempt was in the ledger before any sink was asked about it."""
    is_moved: bool = False
    """The sink was bound to another URL, and nothing was decided since."""

    @property
    def is_new(self) -> bool:
        """Nothing was decided since the sink was bound."""
        return epoch_of(self.transaction) is None


def compare(report: SinkReport, decided: Decided) -> Fit:
    """Compare transactions if the sink reports them, because attempt numbers only grow and are never reused. Otherwise
    compare only the bytes.
    """
    in_doubt = report.in_doubt
    if in_doubt is not None and attempt_of(in_doubt.transaction or b"") > decided.attempts:
        return Fit.NEWER
    reached = report.committed
    if in_doubt is not None and in_doubt.transaction == decided.transaction:
        reached = in_doubt
    if reached is None:  # only known when what is in doubt is aborted: the next report shows it
        return Fit.CONTINUE
    return _bytes(reached, decided) if reached.transaction is None else _transactions(reached.transaction, decided)


def _bytes(reached: Position, decided: Decided) -> Fit:
    if reached.end is None or reached.end == decided.sent:
        return Fit.CONTINUE
    return Fit.OLDER if reached.end < decided.sent else Fit.NEWER


def _transactions(reached: bytes, decided: Decided) -> Fit:
    if reached == decided.transaction:
        return Fit.CONTINUE
    if attempt_of(reached) > attempt_of(decided.transaction):
        return Fit.NEWER
    if decided.is_new:  # its data are from before it was bound
        return Fit.CONTINUE
    if decided.is_moved and not reached:  # a new target, which receives only later output
        return Fit.CONTINUE
    return Fit.OLDER


class Divergence(NamedTuple):
    """A sink that is not used because its data do not match the ledger."""

    fit: Fit
    pipeline: str
    sink: str
    report: SinkReport
    decided: Decided

    @property
    def sentence(self) -> str:
        than = f"sink {self.sink} of pipeline {self.pipeline} is {self.fit.value} than the worker's data"
        return f"{than}: the sink has {self._of_the_sink}, the ledger has {self._of_the_ledger}"

    @property
    def hint(self) -> str:
        rewind = f"penstock sink rewind {self.sink} --pipeline {self.pipeline}"
        if self.fit is Fit.OLDER:
            return (
                "Restore the sink's newest data; or deliver what it lacks again, as far as the output still has it: "
                f"{rewind}; or continue without it: {rewind} --accept-gap"
            )
        accept = f"continue although rows may arrive twice: {rewind} --accept-duplicates"
        restore = "estore the worker's newest data, or the sink from a copy of the same time"
        if self.decided.is_new:
            other = f"another pipeline, or before {self.pipeline} was dropped or reset"
            return f"If the sink was written by {other}, {accept}. Otherwise r{restore}"
        return f"R{restore}; or {accept}"

    @property
    def _of_the_sink(self) -> str:
        reached, in_doubt = self.report.committed, self.report.in_doubt
        if in_doubt is not None and (
            reached is None or attempt_of(in_doubt.transaction or b"") > self.decided.attempts
        ):
            return f"{_shown(in_doubt)}, not decided"
        return "nothing" if reached is None else _shown(reached)

    @property
    def _of_the_ledger(self) -> str:
        return _shown(Position(b"" if self.decided.is_new else self.decided.transaction, self.decided.sent))


def _shown(position: Position) -> str:
    size = f"{position.end or 0} bytes"
    if position.transaction is None:
        return size
    if not position.transaction:
        return "no epoch" if not position.end else f"no epoch and {size}"
    return (
        f"epoch {epoch_of(position.transaction)} (transaction {position.transaction.decode(errors='replace')}, {size})"
    )
