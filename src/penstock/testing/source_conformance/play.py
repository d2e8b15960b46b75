"""One scenario with one client, without I/O and clocks: events go in, effects come out, and finally a verdict."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from penstock.core.address import Address
from penstock.protocol.connector import MIGRATING_VERSION
from penstock.testing.source_conformance.connection import Connection, Effect, Shared, Step
from penstock.testing.source_conformance.rules import Finding, Rule, Violation
from penstock.testing.source_conformance.scenarios import REST, Part, Scenario
from penstock.testing.source_conformance.steps import QUIET_SECONDS
from penstock.testing.source_conformance.streams import StreamLog

Outcome: TypeAlias = Literal["passed", "failed", "skipped"]

TIMEOUT_SECONDS = 30.0
"""How long a client may go without doing what the scenario waits for. Longer than its longest pause between two
connections.
"""

LEAVE_SECONDS = 2.0
"""How long a client may stay connected after everything is acknowledged, before the worker closes."""


@dataclass(frozen=True, slots=True)
class Verdict:
    scenario: str
    outcome: Outcome
    findings: tuple[Finding, ...]
    connections: int
    messages: int
    """Received, including those that came again."""
    seconds: float

    @property
    def errors(self) -> tuple[Finding, ...]:
        return tuple(finding for finding in self.findings if not finding.is_warning)


class Play:
    """The first violation ends it. What a worker tolerates is a warning. Times are seconds of any monotonic clock."""

    def __init__(self, scenario: Scenario, now: float, timeout_seconds: float = TIMEOUT_SECONDS) -> None:
        self.scenario = scenario
        self.is_over = False
        self._timeout_seconds = timeout_seconds
        self._began_at = self._progress_at = self._ended_at = now
        self._first_at: float | None = None
        self._parts = list(scenario.parts)
        self._connections: list[Connection] = []
        self._shared = Shared({}, [], [])
        self._is_skipped = False

    # What happens.

    def connected(self, worker: int, addresses: Sequence[Address], now: float) -> int:
        """The client has connected to this worker. Returns the connection's number."""
        self._progress_at = now
        self._first_at = now if self._first_at is None else self._first_at
        part, found = self._next_part(worker)
        connection = Connection(len(self._connections), part.manner, part.steps, addresses, self._shared)
        self._connections.append(connection)
        if found is not None:
            self._violated(connection, found, now)
        elif self.scenario.is_refusal and connection.number >= len(self.scenario.parts):
            self._shared.warn(Rule.ERROR_IS_FINAL, "it connected again after ERROR", connection.number)
            connection.end()
            self._end(now)
        elif not self._parts and now - self._first_at < self.scenario.pause_seconds_min:
            text = f"{len(self._connections)} connections within {(now - self._first_at) * 1000:.0f} ms"
            self._shared.warn(Rule.PAUSES, text, connection.number)
        return connection.number

    def received(self, number: int, data: bytes, now: float) -> None:
        connection = self._connections[number]
        if not connection.is_ended:
            self._progress_at = now
        self._step(connection, now, lambda: connection.receive(data))

    def closed(self, number: int, now: float) -> None:
        """The client has closed the connection, or reset it."""
        connection = self._connections[number]
        connection.is_closed = True
        self._progress_at = now
        self._step(connection, now, lambda: None)
        if not self.is_over and not connection.is_ended and connection.step is not None:
            text = f"it closed the connection; the worker awaited {connection.step.awaits}"
            self._violated(connection, Violation(text, _broken_rule(connection, connection.step)), now)
        self._end_if_complete(now)

    def left(self, now: float, how: str = "the program ended") -> None:
        """The program under test has ended, and its connections are closed."""
        if not self.is_over:
            if self._is_complete() or (self.scenario.is_refusal and self._is_played()):
                self._end(now)
            else:
                self._stalled(how, now)

    def poll(self, now: float) -> float:
        """Do what is due; returns when something may be due again."""
        for connection in self._connections:
            if not connection.is_closed:
                self._step(connection, now, lambda: None)
        if not self.is_over and self._is_played():
            self._leave(now)
        if not self.is_over and now - self._progress_at >= self._timeout_seconds:
            self._stalled(f"nothing came for {self._timeout_seconds:g} s", now)
        return min(now + QUIET_SECONDS / 3, self._progress_at + self._timeout_seconds)

    # What it says.

    def take(self) -> list[Effect]:
        """What the sockets have to do next. Each action is returned once."""
        effects, self._shared.effects = self._shared.effects[:], []
        return effects

    @property
    def awaits(self) -> str:
        """What the client has to do next."""
        for connection in self._connections:
            if connection.step is not None and not connection.is_ended:
                return connection.step.awaits
        return "the end of the program" if self._is_played() else "a connection"

    @property
    def verdict(self) -> Verdict:
        findings = tuple(self._shared.findings)
        is_failed = any(not finding.is_warning for finding in findings)
        outcome: Outcome = "failed" if is_failed else "skipped" if self._is_skipped else "passed"
        messages = sum(connection.messages for connection in self._connections)
        seconds = self._ended_at - self._began_at
        return Verdict(self.scenario.name, outcome, findings, len(self._connections), messages, seconds)

    # How it continues.

    def _next_part(self, worker: int) -> tuple[Part, Violation | None]:
        if not self._parts:
            return REST, None
        part = self._parts.pop(0)
        if part.worker is None or part.worker == worker:
            return part, None
        return part, Violation("it connected to a different worker from the one it was sent to", part.otherwise)

    def _step(self, connection: Connection, now: float, act: Callable[[], None]) -> None:
        if self.is_over:
            return
        connection.now = now
        try:
            act()
            self._skip_if_unable(connection)
            if not connection.is_ended:
                connection.advance()
            for other in self._connections:  # MIGRATE_ACK must not come before another connection's OK
                _check_order(other, self._connections)
        except Violation as violation:
            self._violated(connection, violation, now)

    def _skip_if_unable(self, connection: Connection) -> None:
        """With a client that does not support MIGRATE, a scenario on it becomes a plain one."""
        if not self.scenario.migrates or self._is_skipped or connection.hello is None:
            return
        if connection.hello.version != MIGRATING_VERSION:
            self._is_skipped = True
            self._parts = []
            connection.manner = REST.manner
            connection.replace_steps(REST.steps)

    def _is_played(self) -> bool:
        """Whether all parts are over, though connections may still be open."""
        return not self._parts and all(one.step is None or one.is_ended for one in self._connections)

    def _is_complete(self) -> bool:
        """Whether the client has also gone."""
        is_gone = all(one.is_closed or one.is_ended for one in self._connections)
        return self._is_played() and is_gone and not self.scenario.is_refusal

    def _end_if_complete(self, now: float) -> None:
        if not self.is_over and self._is_complete():
            self._end(now)

    def _leave(self, now: float) -> None:
        """When all is done, a client may stay connected for a while; one that was refused must not return."""
        if now - self._progress_at >= LEAVE_SECONDS:
            for connection in self._connections:
                if not connection.is_closed and not connection.is_ended:
                    connection.end()
            self._end(now)

    def _stalled(self, what: str, now: float) -> None:
        connection = next((one for one in self._connections if one.step and not one.is_ended), None)
        if connection is not None and connection.step is not None:
            text = f"{what}; the worker awaited {connection.step.awaits}"
            self._violated(connection, Violation(text, _broken_rule(connection, connection.step)), now)
        elif self._connections and self._is_sent():
            self._violated(None, Violation("the program's streams are too short for this scenario"), now)
        else:
            rule_of_part = self._parts[0].otherwise if self._parts and self._connections else None
            self._violated(None, Violation(f"{what}; the worker awaited a connection", rule_of_part), now)

    def _is_sent(self) -> bool:
        logs: list[StreamLog] = list(self._shared.logs.values())
        return bool(logs) and all(log.is_done for log in logs)

    def _violated(self, connection: Connection | None, violation: Violation, now: float) -> None:
        number = None if connection is None else connection.number + 1
        self._shared.findings.append(Finding(str(violation), violation.rule, number))
        for one in self._connections:
            if not one.is_ended and not one.is_closed:
                one.fail(str(violation))
        self._end(now)

    def _end(self, now: float) -> None:
        self.is_over = True
        self._ended_at = now


def _broken_rule(connection: Connection, step: Step) -> Rule:
    """The client has not done what this step awaits."""
    leaves_early = connection.is_closed and connection.ending and step.rule is Rule.ENDS
    return Rule.WAITS_FOR_ACKS if leaves_early else step.rule


def _check_order(connection: Connection, others: Sequence[Connection]) -> None:
    later = [other for other in others if other.number > connection.number]
    if connection.has_migrated and not any(other.is_greeted for other in later):
        raise Violation("MIGRATE_ACK came before the new worker had answered HELLO", Rule.MIGRATE_ACK)
