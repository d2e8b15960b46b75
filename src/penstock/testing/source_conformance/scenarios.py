"""The scenarios: for each connection that the client makes, in order, how the worker serves it and what it does."""

from collections.abc import Sequence
from dataclasses import dataclass

from penstock.core.errors import RequestError
from penstock.core.suggestions import suggestion
from penstock.testing.source_conformance.connection import Manner, Step
from penstock.testing.source_conformance.rules import Rule
from penstock.testing.source_conformance.steps import (
    AckEnds,
    AckFirst,
    AckStored,
    Answer,
    AwaitEnds,
    AwaitEndsWithoutCredit,
    AwaitHello,
    AwaitMigrateAck,
    AwaitMigrateEnds,
    AwaitNotify,
    AwaitRepeatedNotify,
    AwaitReturn,
    AwaitStreams,
    Drop,
    Grant,
    GrantEach,
    Greet,
    Quiet,
    Refuse,
    RunDry,
    SendMigrate,
    SendRestart,
    Take,
    TakeAll,
)

FIRST, OTHER, NOBODY = 0, 1, 2
"""The workers: the one that the client knows, another one, and an address at which nothing listens."""

PAUSE_SECONDS_MIN = 0.02
"""The least time for as many connections as `pauses` closes. A client that pauses for a random time from 0 to 50, 100,
200, … ms is faster once in ten million times; one that does not pause needs a millisecond.
"""


@dataclass(frozen=True, slots=True)
class Part:
    """One connection. `worker` is where the client must connect; None: anywhere."""

    manner: Manner
    steps: tuple[Step, ...]
    worker: int | None = FIRST
    otherwise: Rule = Rule.RECONNECTS
    """The rule that a client breaks if it connects elsewhere, or not at all."""


USUAL = Manner()


def part(
    *steps: Step,
    manner: Manner = USUAL,
    worker: int | None = FIRST,
    otherwise: Rule = Rule.RECONNECTS,
) -> Part:
    return Part(manner, steps, worker, otherwise)


REST = part(Greet(), TakeAll())
"""The worker takes everything that is left. It also serves connections after the scenario's last part in this way."""


@dataclass(frozen=True, slots=True)
class Scenario:
    name: str
    shows: str
    """What the worker does, in one sentence."""
    parts: tuple[Part, ...]
    migrates: bool = False
    """Whether it is only for clients that announce support for MIGRATE."""
    is_refusal: bool = False
    """Whether the client must give up."""
    pause_seconds_min: float = 0.0
    """From the first connection to the last part's, at least."""


def _scenarios() -> Sequence[Scenario]:
    starved = Manner(credits=0, returns_credits=False)
    silent = Manner(acks_every=0, acks_ends=False)
    there = Rule.RESTART
    return (
        Scenario("plain", "Takes every message, with few credits, and acknowledges it.", (
            part(Greet(), TakeAll(), manner=Manner(credits=10)),
        )),
        Scenario("pieces", "Sends its frames byte by byte.", (
            part(Greet(), TakeAll(), manner=Manner(piece_bytes=1, acks_every=3)),
        )),
        Scenario("no-credits", "Grants no credits at first, then one, then three.", (
            part(
                Greet(), RunDry(), Grant(1), RunDry(), Grant(3), RunDry(), Drop(),
                manner=starved,
            ),
            REST,
        )),
        Scenario("end-without-credit", "Grants exactly the credits for the last messages.", (
            part(Greet(), AwaitEnds(), Drop(), manner=Manner(acks_every=0, acks_ends=False, lost=1)),
            part(Greet(), AwaitStreams(), GrantEach(1), AwaitEndsWithoutCredit(), AckEnds(), TakeAll(),
                 manner=Manner(credits=0, returns_credits=False, acks_ends=False)),
        )),
        Scenario("late-acks", "Acknowledges nothing until all streams have ended, then a part, then the rest.", (
            part(Greet(), AwaitEnds(), Quiet(), AckFirst(), Quiet(), AckEnds(), TakeAll(), manner=silent),
        )),
        Scenario("lost-messages", "Closes, and has not stored the last messages: they must come again.", (
            part(Greet(), Take(10), Drop(), manner=Manner(acks_every=2, lost=4)),
            REST,
        )),
        Scenario("nothing-stored", "Closes, and has stored nothing: everything must come again.", (
            part(Greet(), Take(5), Drop(), manner=Manner(acks_every=0, acks_ends=False, lost=1 << 30)),
            REST,
        )),
        Scenario("stored-not-acked", "Closes, and has stored more than it has acknowledged.", (
            part(Greet(), Take(10), Drop(), manner=silent),
            REST,
        )),
        Scenario("closes", "Closes, or resets the connection, at every stage of a session.", (
            part(AwaitHello(), Drop()),
            part(Greet(), Drop()),
            part(Greet(), AwaitNotify(), Drop(reset=True), manner=Manner(answers=False)),
            part(Greet(), Take(3), Drop(reset=True)),
            part(Greet(), AwaitEnds(), Drop(), manner=silent),
            REST,
        )),
        Scenario("half-frames", "Closes in the middle of a frame.", (
            part(Greet(), Take(3), Drop(half=True), manner=Manner(lost=1)),
            part(Greet(), Take(1), Drop(half=True, reset=True)),
            REST,
        )),
        Scenario("pauses", "Closes five connections as soon as HELLO has come.", (
            *[part(AwaitHello(), Drop())] * 5,
            REST,
        ), pause_seconds_min=PAUSE_SECONDS_MIN),
        Scenario("stream-in-use", "Refuses the first streams twice: another client seems to use them.", (
            part(Greet(), AwaitRepeatedNotify(), TakeAll(), manner=Manner(refusals=2)),
        )),
        Scenario("restart", "Sends RESTART without an address.", (
            part(Greet(), Take(3), SendRestart(), manner=Manner(lost=1)),
            REST,
        )),
        Scenario("restart-elsewhere", "Sends RESTART with the address of another worker.", (
            part(Greet(), Take(3), SendRestart(OTHER), manner=Manner(lost=1)),
            part(Greet(), TakeAll(), worker=OTHER, otherwise=there),
        )),
        Scenario("refused-version", "Refuses the version in HELLO.", (
            part(AwaitHello(), Refuse("HELLO: version '0.0.1' is not supported, only 9.9.9")),
        ), is_refusal=True),
        Scenario("refused-cookie", "Refuses the cookie in HELLO.", (
            part(AwaitHello(), Refuse("HELLO: the cookie is wrong")),
        ), is_refusal=True),
        Scenario("refused-message", "Sends ERROR in the middle of a stream.", (
            part(Greet(), Take(3), Refuse("MESSAGE: the scenario wants it so")),
        ), is_refusal=True),
        *_migrations(),
    )  # fmt: skip


def _migrations() -> Sequence[Scenario]:
    there = part(Greet(), TakeAll(), worker=OTHER, otherwise=Rule.MIGRATE_ACK)
    few = Manner(credits=8, returns_credits=False, lost=2)
    return (
        Scenario("migrate", "Sends MIGRATE, and has not stored the last messages.", (
            part(Greet(), RunDry(), SendMigrate(OTHER), AwaitMigrateEnds(), AckStored(), AwaitMigrateAck(), Drop(),
                 manner=few),
            there,
        ), migrates=True),
        Scenario("migrate-at-hello", "Answers HELLO with MIGRATE: it is the wrong worker.", (
            part(AwaitHello(), SendMigrate(OTHER), AwaitMigrateAck(), Drop()),
            there,
        ), migrates=True),
        Scenario("migrate-before-open", "Sends MIGRATE before it answers NOTIFY.", (
            part(Greet(), AwaitNotify(), SendMigrate(OTHER), Answer(), AwaitMigrateEnds(), AckStored(),
                 AwaitMigrateAck(), Drop(), manner=Manner(answers=False, returns_credits=False)),
            there,
        ), migrates=True),
        Scenario("migrate-after-end", "Sends MIGRATE instead of acknowledging the end of the streams.", (
            part(Greet(), AwaitEnds(), SendMigrate(OTHER), AckStored(), AwaitMigrateAck(), Drop(),
                 manner=Manner(acks_every=0, acks_ends=False)),
            there,
        ), migrates=True),
        Scenario("migrate-nowhere", "Sends MIGRATE with an address at which nothing listens.", (
            part(Greet(), Take(3), SendMigrate(NOBODY), AwaitMigrateEnds(), AckStored(), AwaitReturn()),
            part(Greet(), TakeAll(), otherwise=Rule.MIGRATE_FAILS),
        ), migrates=True),
        Scenario("migrate-and-die", "Sends MIGRATE, and closes without acknowledging anything.", (
            part(Greet(), Take(3), SendMigrate(OTHER), Drop(), manner=Manner(lost=2)),
            part(Greet(), TakeAll(), worker=None, otherwise=Rule.MIGRATE_FAILS),
        ), migrates=True),
    )  # fmt: skip


SCENARIOS = tuple(_scenarios())


def chosen(names: Sequence[str]) -> tuple[Scenario, ...]:
    """The scenarios of these names, in the suite's order; all without a name. Raises RequestError."""
    known = [scenario.name for scenario in SCENARIOS]
    for name in names:
        if name not in known:
            raise RequestError(
                f"{name!r} is not a scenario", suggestion(name, known) or f"Available: {', '.join(known)}."
            )
    return tuple(scenario for scenario in SCENARIOS if not names or scenario.name in names)
