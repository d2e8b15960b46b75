"""What a sink reports × what the ledger has: the sink continues, or is refused as older or newer."""

from itertools import product

import pytest

from penstock.connectors.sink_api import Position, SinkReport, attempt_of, epoch_of
from penstock.delivery.positions import Decided, Divergence, Fit, compare

C, L, N = Fit.CONTINUE, Fit.OLDER, Fit.NEWER

# The ledger: the worker has made 8 attempts.
LEDGERS = {
    "first binding": Decided(b"", 0, 8),
    "bound again": Decided(b"p:-1:4", 0, 8),
    "decided": Decided(b"p:5:6", 600, 8),
    "moved": Decided(b"p:5:6", 600, 8, is_moved=True),
}

# What the sink has committed: transactions and bytes.
NONE = Position(b"", 0)
BEFORE_IT_WAS_BOUND = Position(b"p:1:3", 200)
OLD = Position(b"p:4:5", 500)
SAME = Position(b"p:5:6", 600)
UNDECIDED = Position(b"p:6:7", 700)
UNKNOWN = Position(b"p:8:9", 900)
FOREIGN = Position(b"something else", 10)

COMMITTED = {
    #                                 first bound again decided moved
    "nothing": (NONE, (C, C, L, C)),
    "older than the binding": (BEFORE_IT_WAS_BOUND, (N, C, L, L)),
    "older": (OLD, (N, N, L, L)),
    "the same": (SAME, (N, N, C, C)),
    "attempted but not decided": (UNDECIDED, (N, N, N, N)),
    "never attempted": (UNKNOWN, (N, N, N, N)),
    "not of a worker": (FOREIGN, (C, C, L, L)),
}

# What is in doubt does not matter, except: it is the decided one, or one that this worker has never attempted.
IN_DOUBT = {
    "nothing": (None, None),
    "aborted": (Position(b"p:6:7", 700), None),
    "decided": (Position(b"p:5:6", 600), (None, None, C, C)),
    "never attempted": (Position(b"p:8:9", 900), (N, N, N, N)),
}


@pytest.mark.parametrize("ledger", LEDGERS)
@pytest.mark.parametrize(("committed", "in_doubt"), [*product(COMMITTED, IN_DOUBT)])
def test_the_transactions_of_sink_and_ledger_are_compared(committed: str, in_doubt: str, ledger: str) -> None:
    number = [*LEDGERS].index(ledger)
    reached, fits = COMMITTED[committed]
    voted, overrides = IN_DOUBT[in_doubt]
    expected = (overrides[number] if overrides is not None else None) or fits[number]
    assert compare(SinkReport(reached, voted), LEDGERS[ledger]) is expected


@pytest.mark.parametrize(
    ("end", "fits"),
    [
        (None, (C, C, C, C)),
        (0, (C, C, L, L)),
        (599, (N, N, L, L)),
        (600, (N, N, C, C)),
        (601, (N, N, N, N)),
    ],
)
def test_bytes_are_compared_if_the_sink_does_not_report_transactions(end: int | None, fits: tuple[Fit, ...]) -> None:
    report = SinkReport(Position(None, end))
    assert tuple(compare(report, ledger) for ledger in LEDGERS.values()) == fits


@pytest.mark.parametrize(
    ("in_doubt", "fits"),
    [(b"p:5:6", (C, C, C, C)), (b"p:6:7", (C, C, C, C)), (b"p:8:9", (N, N, N, N)), (b"else", (C, C, C, C))],
)
def test_a_sink_that_reports_only_transactions_in_doubt_is_compared_once_they_are_settled(
    in_doubt: bytes, fits: tuple[Fit, ...]
) -> None:
    report = SinkReport(None, Position(in_doubt, 10_000))
    assert tuple(compare(report, ledger) for ledger in LEDGERS.values()) == fits


@pytest.mark.parametrize(
    ("transaction", "epoch", "attempt"),
    [(b"p:5:6", 5, 6), (b"a:b:5:6", 5, 6), (b"p:-1:6", None, 6), (b"", None, 0), (b"x", None, 0), (b"p:x:y", None, 0)],
)
def test_a_transaction_id_has_an_epoch_and_an_attempt(transaction: bytes, epoch: int | None, attempt: int) -> None:
    assert (epoch_of(transaction), attempt_of(transaction)) == (epoch, attempt)


@pytest.mark.parametrize(
    ("report", "sentence"),
    [
        (
            SinkReport(OLD),
            (
                "sink out of pipeline p is older than the worker's data: the sink has epoch 4 (transaction p:4:5, "
                "500 bytes), the ledger has epoch 5 (transaction p:5:6, 600 bytes)"
            ),
        ),
        (
            SinkReport(NONE),
            (
                "sink out of pipeline p is older than the worker's data: the sink has no epoch, "
                "the ledger has epoch 5 (transaction p:5:6, 600 bytes)"
            ),
        ),
        (
            SinkReport(Position(None, 500)),
            (
                "sink out of pipeline p is older than the worker's data: the sink has 500 bytes, "
                "the ledger has epoch 5 (transaction p:5:6, 600 bytes)"
            ),
        ),
        (
            SinkReport(SAME, Position(b"p:8:9", 900)),
            (
                "sink out of pipeline p is newer than the worker's data: the sink has epoch 8 (transaction p:8:9, "
                "900 bytes), not decided, the ledger has epoch 5 (transaction p:5:6, 600 bytes)"
            ),
        ),
    ],
)
def test_the_refusal_names_the_sink_and_both_epochs(report: SinkReport, sentence: str) -> None:
    decided = LEDGERS["decided"]
    found = Divergence(compare(report, decided), "p", "out", report, decided)
    assert found.sentence == sentence
    option = "--accept-gap" if found.fit is Fit.OLDER else "--accept-duplicates"
    assert found.hint.endswith(f"penstock sink rewind out --pipeline p {option}")


def test_data_written_before_a_drop_or_a_fork_is_not_attributed_to_a_lost_worker() -> None:
    """The ledger does not know which of the two it was, so the operator decides."""
    report, decided = SinkReport(SAME), LEDGERS["first binding"]
    found = Divergence(compare(report, decided), "p", "out", report, decided)
    assert found.fit is Fit.NEWER
    assert found.hint.startswith(
        "If the sink was written by another pipeline, or before p was dropped or reset, continue"
    )
    assert "penstock sink rewind out --pipeline p --accept-duplicates. Otherwise restore" in found.hint
