"""The contract of every sink that votes inside the worker, whatever it writes to. Test classes inherit these tests."""

import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

import pytest

from penstock.connectors.sink_api import SinkLost
from penstock.connectors.threaded import BlockingSink, Threaded
from tests.connectors.stores.dying_store import DyingStores
from tests.connectors.stores.kinds import Store
from tests.connectors.stores.rounds import example
from tests.delivery.fake_epoch import FakeEpoch, Row, block_of

STEPS_MAX = 200
"""Longer than any sink needs for an epoch."""


@contextmanager
def opened(store: Store, decided: bytes = b"") -> Iterator[BlockingSink]:
    sink = store.sink()
    try:
        sink.open(decided)
        yield sink
    finally:
        sink.close()


class KillContract:
    """Whichever step the process is killed at."""

    @pytest.mark.process
    @pytest.mark.parametrize("decision", ["commit", "abort"])
    def test_a_kill_at_any_step_of_a_round_leaves_whole_epochs(
        self, store: Store, dying: DyingStores, tmp_path: Path, decision: str
    ) -> None:
        first, second, third = example(3)
        fates = set()
        for step in count():
            assert step < STEPS_MAX
            victim, notes = store.sibling(f"{decision}.{step}"), tmp_path / f"notes-{step}"
            if not dying.killed_in_round(victim, step, decision, notes):
                break
            is_decided = decision == "commit" and notes.exists()
            fates.add(notes.exists())
            done = [first, second] if is_decided else [first]
            assert victim.found() in (victim.expected([first]), victim.expected(done))
            with opened(victim, done[-1].id) as sink:
                assert victim.found() == victim.expected(done)
                if not is_decided:
                    second.again().deliver(sink)
                third.deliver(sink)
            assert victim.found() == victim.expected([first, second, third])
        assert fates == {False, True}

    @pytest.mark.process
    @pytest.mark.parametrize("is_decided", [True, False])
    def test_a_kill_at_any_step_of_the_recovery_does_not_change_the_outcome(
        self, store: Store, dying: DyingStores, is_decided: bool
    ) -> None:
        first, second, third = example(3)
        done = [first, second] if is_decided else [first]
        for step in count():
            assert step < STEPS_MAX
            victim = store.sibling(f"open.{is_decided}.{step}")
            with opened(victim) as sink:
                first.deliver(sink)
                assert second.prepare(sink).yes
            if not dying.killed_in_open(victim, step, done[-1].id):
                break
            with opened(victim, done[-1].id) as sink:
                assert victim.found() == victim.expected(done)
                if not is_decided:
                    second.again().deliver(sink)
                third.deliver(sink)
            assert victim.found() == victim.expected([first, second, third])
        assert step > 2


class StoreContract(KillContract):
    def test_committed_epochs_are_visible_and_stay(self, store: Store) -> None:
        rounds = example(3)
        with opened(store) as sink:
            for done, one in enumerate(rounds, 1):
                one.deliver(sink)
                assert store.found() == store.expected(rounds[:done])
        with opened(store, rounds[-1].id):
            assert store.found() == store.expected(rounds)

    def test_nothing_is_visible_before_the_commit(self, store: Store) -> None:
        first, second = example(2)
        with opened(store) as sink:
            first.deliver(sink)
            second.write(sink)
            assert store.found() == store.expected([first])
            assert sink.prepare(second.transaction).yes
            assert store.found() == store.expected([first])
            sink.commit(second.transaction)
            assert store.found() == store.expected([first, second])

    def test_an_aborted_epoch_leaves_nothing_and_can_be_delivered_again(self, store: Store) -> None:
        first, second = example(2)
        with opened(store) as sink:
            first.deliver(sink)
            assert second.prepare(sink).yes
            sink.abort()
            assert store.found() == store.expected([first])
            second.again().deliver(sink)
            assert store.found() == store.expected([first, second])

    def test_rows_written_without_a_vote_are_discarded_by_an_abort(self, store: Store) -> None:
        first, second = example(2)
        with opened(store) as sink:
            first.write(sink)
            sink.abort()
            first.again().deliver(sink)
            second.write(sink)
            sink.abort()
            second.again().deliver(sink)
        assert store.found() == store.expected([first, second])

    def test_an_abort_of_nothing_changes_nothing(self, store: Store) -> None:
        (first,) = example(1)
        with opened(store) as sink:
            sink.abort()
            first.deliver(sink)
            sink.abort()
            sink.abort()
        assert store.found() == store.expected([first])

    def test_a_repeated_commit_changes_nothing(self, store: Store) -> None:
        first, second = example(2)
        with opened(store) as sink:
            first.deliver(sink)
            sink.commit(first.transaction)
        with opened(store, first.id) as sink:
            sink.commit(first.transaction)
            second.deliver(sink)
            sink.commit(second.transaction)
        assert store.found() == store.expected([first, second])

    def test_a_commit_without_a_vote_is_refused(self, store: Store) -> None:
        first, second = example(2)
        with opened(store) as sink:
            first.deliver(sink)
            with pytest.raises(SinkLost, match=r"it has not voted on orders:1:1"):
                sink.commit(second.transaction)
        assert store.found() == store.expected([first])

    def test_a_transaction_in_doubt_is_committed_if_that_was_decided(self, store: Store) -> None:
        first, second, third = example(3)
        with opened(store) as sink:
            first.deliver(sink)
            assert second.prepare(sink).yes
        with opened(store, second.id) as sink:
            assert store.found() == store.expected([first, second])
            sink.commit(second.transaction)
            third.deliver(sink)
        assert store.found() == store.expected([first, second, third])

    def test_a_transaction_in_doubt_is_aborted_unless_its_commit_was_decided(self, store: Store) -> None:
        first, second, third = example(3)
        with opened(store) as sink:
            assert first.prepare(sink).yes
        with opened(store) as sink:
            first.again().deliver(sink)
            assert second.prepare(sink).yes
        with opened(store, first.again().id) as sink:
            assert store.found() == store.expected([first])
            second.again().deliver(sink)
            third.deliver(sink)
        assert store.found() == store.expected([first, second, third])

    def test_a_sink_closed_during_an_epoch_starts_it_again(self, store: Store) -> None:
        first, second = example(2)
        with opened(store) as sink:
            first.deliver(sink)
            second.write(sink)
        with opened(store, first.id) as sink:
            second.again().deliver(sink)
        assert store.found() == store.expected([first, second])

    def test_a_sink_can_be_closed_in_any_state_and_reopened(self, store: Store) -> None:
        (first,) = example(1)
        sink = store.sink()
        sink.close()
        sink.open(b"")
        sink.close()
        sink.close()
        with pytest.raises(SinkLost):
            sink.abort()
        sink.open(b"")
        first.write(sink)
        sink.close()
        sink.open(b"")
        first.again().deliver(sink)
        sink.close()
        assert store.found() == store.expected([first])

    async def test_a_sink_works_in_a_thread(self, store: Store) -> None:
        first, second = example(2)
        sink = Threaded(store.sink(), "s")
        await sink.open(b"")
        for one in (first, second):
            epoch = FakeEpoch(one.rows, start=one.start, number=one.number)
            assert (await sink.prepare(epoch)).yes
            await sink.commit(epoch.transaction)
        await sink.end()
        await sink.close()
        assert store.found() == store.expected([first, second])

    def test_memory_is_bounded_by_the_block(self, store: Store) -> None:
        block = block_of([Row(bytes(10_000), b"%d" % row) for row in range(100)])
        with opened(store) as sink:
            sink.write(block)
            tracemalloc.start()
            for _ in range(20):
                sink.write(block)
            peak = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
        assert peak < 3 * 1_000_000
