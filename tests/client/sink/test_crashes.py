"""A sink program is killed at each point of a round, with SIGKILL: nothing is lost, and nothing is stored twice."""

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.client.scripted_peer import Cut
from tests.client.sink import dying_sink
from tests.client.sink.conftest import Output
from tests.client.sink.scripted_worker import ScriptedWorker
from tests.client.sink.sink_process import SinkProcess

pytestmark = pytest.mark.process

VOTES_ARE_KNOWN = ("after the vote", "before the decision", "in the decision")
"""Killed there, the sink finds its yes in the log, and no decision."""

DECISIONS = ("before the decision", "in the decision", "after the decision")
"""Where an abort is another case than a commit."""

VOTE_ARRIVES = dying_sink.POINTS[5:]
"""Killed there, it has said yes before."""


@pytest.fixture
def process(kind: str, tmp_path: Path) -> Iterator[SinkProcess]:
    with SinkProcess("-m", "tests.client.sink.dying_sink", kind, str(tmp_path), "ADDRESS") as sink:
        yield sink


@pytest.mark.parametrize(
    ("point", "commit"), [*((point, True) for point in dying_sink.POINTS), *((point, False) for point in DECISIONS)]
)
def test_killed_at_any_point_it_continues_from_what_is_durable(
    process: SinkProcess, output: Output, point: str, commit: bool
) -> None:
    process.start(point)
    with ScriptedWorker(process.address) as worker:
        worker.greet()
        worker.deliver(b"1:1", [b"first"])
        decision = _deliver_until_it_dies(worker, commit)
    assert process.join() == -signal.SIGKILL
    assert (decision is not None) == (point in VOTE_ARRIVES)

    process.start()
    with ScriptedWorker(process.address) as worker:
        uncommitted = worker.greet()
        assert uncommitted == ((b"2:1",) if point in VOTES_ARE_KNOWN else ())
        for txn_id in uncommitted:
            worker.decide(txn_id, decision is True)  # presumed abort
        assert output.all == output.committed == (b"first\nsecond\n" if decision else b"first\n")
        if not decision:
            worker.offset = 5
            worker.deliver(b"2:2", [b"second"])
        worker.deliver(b"3:1", [b"third"])
    assert output.all == output.committed == b"first\nsecond\nthird\n"


def _deliver_until_it_dies(worker: ScriptedWorker, commit: bool) -> bool | None:
    """What was decided, if it came to that."""
    decision: bool | None = None
    try:
        if worker.vote(b"2:1", worker.write([b"second"])):
            decision = commit
            worker.decide(b"2:1", commit)
    except Cut:
        return decision
    raise AssertionError("it lives")


def test_ctrl_c_ends_it_and_the_next_run_continues(process: SinkProcess, output: Output) -> None:
    process.start()
    with ScriptedWorker(process.address) as worker:
        worker.greet()
        worker.deliver(b"1", [b"first"])
        assert worker.vote(b"2", worker.write([b"second"]))
        assert process.interrupt() in (1, -signal.SIGINT)  # a traceback that ends with KeyboardInterrupt
        worker.expect_close()
    process.start()
    with ScriptedWorker(process.address) as worker:
        assert worker.greet() == (b"2",)
        worker.decide(b"2", True)
    assert output.committed == b"first\nsecond\n"
