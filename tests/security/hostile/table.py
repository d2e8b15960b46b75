"""A good client's throughput while each attack runs, beside its throughput when nobody attacks.

The client uses the SDKs, and its work is done when everything is acknowledged. Blocks of its work with and without the
attack alternate, and the medians are compared. What else the machine does concerns both alike, if it does not change
from second to second: run the table on a machine that is otherwise idle.
"""

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import count
from statistics import median

from rich.table import Table

from penstock.core.errors import PenstockError
from tests.security.hostile.attacks import ATTACKS, AttackProcess
from tests.security.hostile.target import Target
from tests.support import http

RATIO_MIN = 0.5
ROUNDS = 5
BLOCK_SECONDS = 1.0
"""What a block of work takes when nobody attacks, about."""
BLOCK_SECONDS_MAX = 30.0
"""A block that takes longer, or fails, counts as no work at all."""

_EVENT = b"x" * 1000
_CALIBRATION_EVENTS = 2000


class GoodClient:
    """A block of its work uses each of the ports: it connects, appends to a segment, sends as a source, and looks at
    the status.
    """

    def __init__(self, target: Target) -> None:
        self._target = target
        self._numbers = count(1)
        self._events = _CALIBRATION_EVENTS

    def calibrate(self) -> None:
        self.work()  # the first time, connections and code are cold
        self._events = max(int(self.work() * BLOCK_SECONDS), 100)

    def work(self) -> float:
        """A block; returns events per second, 0 if it fails."""
        start = time.monotonic()
        try:
            self.append(self._events // 2)
            self.send(self._events - self._events // 2)
            status, _ = http.ask(self._target.ports.http, "GET", "/status", token=self._target.tokens["good"])
        except (PenstockError, OSError):
            return 0.0
        seconds = time.monotonic() - start
        return self._events / seconds if status == 200 and seconds < BLOCK_SECONDS_MAX else 0.0

    def append(self, events: int) -> None:
        """Through a new connection, pipelined; the segment is deleted afterwards, so that the disk stays small."""
        name = f"good/{next(self._numbers)}"
        with self._target.good_client() as client:
            with client.appender(name, create=True) as appender:
                appender.append_many(_EVENT for _ in range(events))
            client.delete(name)

    def send(self, events: int) -> None:
        """As a source with a new stream; returns when everything is acknowledged."""

        def messages(after: int | None) -> Iterator[tuple[int, bytes]]:
            return ((number, _EVENT) for number in range((after or 0) + 1, events + 1))

        source = self._target.good_source("good")
        source.stream(f"stream {next(self._numbers)}", messages)
        source.run()


@dataclass(frozen=True, slots=True)
class Row:
    attack: str
    alone: float
    """Events per second, the median of all rounds."""
    attacked: float
    attempts: float
    """Per second, of the attackers together."""

    @property
    def ratio(self) -> float:
        return self.attacked / self.alone if self.alone else 0.0


def measure(
    target: Target,
    attacks: Iterable[str] = tuple(ATTACKS),
    rounds: int = ROUNDS,
    on_row: Callable[[Row], None] = lambda _: None,
) -> list[Row]:
    client, process = GoodClient(target), AttackProcess(target)
    try:
        client.calibrate()
        rows = []
        for attack in attacks:
            rows.append(_measure(client, process, attack, rounds))
            on_row(rows[-1])
        return rows
    finally:
        process.close()


def _measure(client: GoodClient, process: AttackProcess, attack: str, rounds: int) -> Row:
    alone, attacked, attempts = [], [], []
    for _ in range(rounds):
        alone.append(client.work())
        with process.running(attack) as rates:
            attacked.append(client.work())
        attempts += rates
    return Row(attack, median(alone), median(attacked), median(attempts))


def as_table(rows: list[Row]) -> Table:
    table = Table("attack", title="A good client's events per second")
    for heading in ("attempts/s", "alone", "attacked", "ratio"):
        table.add_column(heading, justify="right")
    for row in rows:
        color = "green" if row.ratio >= RATIO_MIN else "bold red"
        rates = [f"{rate:,.0f}" for rate in (row.attempts, row.alone, row.attacked)]
        table.add_row(row.attack, *rates, f"[{color}]{row.ratio:.2f}[/]")
    return table
