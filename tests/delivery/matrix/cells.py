"""The matrix: the sink's vote, where the connection is lost, which process is killed there, and the outcome."""

from enum import Enum
from itertools import product
from typing import NamedTuple


class Answer(Enum):
    YES = "yes"
    NO = "no"


class Lost(Enum):
    BEFORE_PHASE1 = "before PHASE1 arrives"
    AFTER_PHASE1 = "when the sink has PHASE1"
    BEFORE_REPLY = "before the REPLY arrives"
    AFTER_REPLY = "when the REPLY has arrived"
    BEFORE_PHASE2 = "before PHASE2 arrives"
    AFTER_PHASE2 = "when the sink has PHASE2"


class Killed(Enum):
    NOBODY = "nobody"
    WORKER = "worker"
    SINK = "sink"


class Attempt(Enum):
    """Which attempt at the epoch is committed at the sink."""

    SAME = "the same"
    LATER = "a later one"
    EITHER = "the same if journalled, else a later one"
    """The worker has the vote in its hands when it is stopped: only its journal knows whether it came to decide."""


class Cell(NamedTuple):
    answer: Answer
    lost: Lost
    killed: Killed

    def __str__(self) -> str:
        return f"{self.answer.value}, {self.lost.value}, {self.killed.value}"


class Outcome(NamedTuple):
    in_doubt: bool
    """Whether the sink lists the transaction when the worker connects the next time."""
    committed: Attempt


_NOT_VOTED = Outcome(False, Attempt.LATER)
_ABORTED = Outcome(True, Attempt.LATER)
_JOURNAL = Outcome(True, Attempt.EITHER)
_DECIDED = Outcome(True, Attempt.SAME)
_TOLD = Outcome(False, Attempt.SAME)

_YES: dict[Lost, tuple[Outcome, Outcome, Outcome]] = {
    # where               nobody killed, worker killed, sink killed
    Lost.BEFORE_PHASE1: (_NOT_VOTED, _NOT_VOTED, _NOT_VOTED),
    Lost.AFTER_PHASE1: (_ABORTED, _ABORTED, _NOT_VOTED),
    Lost.BEFORE_REPLY: (_ABORTED, _ABORTED, _ABORTED),
    Lost.AFTER_REPLY: (_JOURNAL, _JOURNAL, _JOURNAL),
    Lost.BEFORE_PHASE2: (_DECIDED, _DECIDED, _DECIDED),
    Lost.AFTER_PHASE2: (_TOLD, _TOLD, _TOLD),
}

TABLE: dict[Cell, Outcome] = {
    Cell(Answer.YES, lost, killed): outcome
    for lost, outcomes in _YES.items()
    for killed, outcome in zip(Killed, outcomes, strict=True)
} | {Cell(Answer.NO, lost, killed): _NOT_VOTED for lost, killed in product(Lost, Killed)}
"""A vote of no never leaves anything in doubt: the sink discards the data before it votes."""


def as_markdown() -> str:
    """The table as in docs/internals/delivery.md."""
    lines = [
        "| vote | the connection is lost | killed there | in doubt at the sink | committed attempt |",
        "|---|---|---|---|---|",
    ]
    for answer, lost in product(Answer, Lost):
        outcomes = {killed: TABLE[Cell(answer, lost, killed)] for killed in Killed}
        for outcome in dict.fromkeys(outcomes.values()):
            who = [killed.value for killed in Killed if outcomes[killed] == outcome]
            killed = "nobody, worker or sink" if len(who) == len(Killed) else " or ".join(who)
            in_doubt = "yes" if outcome.in_doubt else "no"
            lines.append(f"| {answer.value} | {lost.value} | {killed} | {in_doubt} | {outcome.committed.value} |")
    return "\n".join(lines) + "\n"
