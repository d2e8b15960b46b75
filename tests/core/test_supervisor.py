"""No background task ends unnoticed: it is restarted after a back-off, or the process ends."""

import asyncio
import logging

import pytest

from penstock.core.errors import Damaged, StoreFailed
from penstock.core.retry import RetryPolicy
from penstock.core.supervisor import OnDeath, Supervisor, TaskState
from tests.support.waiting import eventually


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.core.supervisor.RESTARTS", RetryPolicy(0.01, 0.05))


async def test_a_task_that_raises_is_restarted(caplog: pytest.LogCaptureFixture) -> None:
    supervisor, runs = Supervisor(), []

    async def work() -> None:
        runs.append(1)
        if len(runs) < 3:
            raise ValueError("broken")
        await asyncio.Event().wait()

    task = supervisor.run("work", work)
    await eventually(lambda: len(runs) == 3)
    assert supervisor.states() == [TaskState("work", deaths=2, is_failing=True)]
    assert supervisor.problems() == ["background task 'work' has failed 2 times: broken"]
    first = caplog.records[0]  # not its text: Spark, where it runs in this process, changes how that is formatted
    assert "background task 'work' failed: broken; it is restarted in" in first.getMessage()
    assert first.exc_info
    await task.stop()


async def test_a_task_that_somebody_else_cancels_is_restarted() -> None:
    supervisor, runs = Supervisor(), []

    async def work() -> None:
        runs.append(asyncio.current_task())
        await asyncio.Event().wait()

    task = supervisor.run("work", work)
    await eventually(lambda: runs)
    runs[0].cancel()  # type: ignore[union-attr]
    await eventually(lambda: len(runs) == 2)
    assert supervisor.problems() == ["background task 'work' has failed once: it was cancelled"]
    await task.stop()
    assert len(runs) == 2


async def test_periodic_work_continues_after_an_error(caplog: pytest.LogCaptureFixture) -> None:
    supervisor, rounds = Supervisor(), []

    def work() -> None:
        rounds.append(1)
        if len(rounds) == 2:
            raise Damaged("a block cannot be read")

    task = supervisor.every("work", 0.001, work)
    await eventually(lambda: len(rounds) > 5)
    await task.stop()
    assert "a block cannot be read" in caplog.text
    assert not any(record.exc_info for record in caplog.records)  # the error explains itself


async def test_a_task_that_has_run_for_a_while_is_no_problem_any_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.core.supervisor.STEADY_SECONDS", 0.05)
    supervisor, rounds = Supervisor(), []

    def work() -> None:
        rounds.append(1)
        if len(rounds) == 1:
            raise OSError("gone")

    task = supervisor.every("work", 0.001, work)
    await eventually(supervisor.problems)
    await eventually(lambda: not supervisor.problems())
    assert supervisor.states() == [TaskState("work", deaths=1, is_failing=False)]
    await task.stop()


async def test_the_process_ends_with_a_task_that_it_needs(caplog: pytest.LogCaptureFixture) -> None:
    ended = asyncio.Event()
    supervisor = Supervisor(ended.set)

    async def work() -> None:
        raise RuntimeError("no more")

    supervisor.run("http", work, OnDeath.END)
    await asyncio.wait_for(ended.wait(), 60)
    assert supervisor.problems() == ["background task 'http' failed: no more"]
    assert "the worker cannot run without it" in caplog.text


async def test_a_task_may_return_and_is_then_forgotten() -> None:
    supervisor, over = Supervisor(), []

    async def work() -> None:
        pass

    task = supervisor.run("work", work, ended=lambda: over.append(1))
    await asyncio.wait_for(task.finished.wait(), 60)
    assert over == [1]
    assert supervisor.states() == []


async def test_a_stop_ends_a_task_that_waits_for_its_restart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.core.supervisor.RESTARTS", RetryPolicy(60, 60))
    supervisor, runs = Supervisor(), []

    async def work() -> None:
        runs.append(1)
        raise ValueError

    task = supervisor.run("work", work)
    await eventually(lambda: task.is_waiting)
    await task.stop()
    assert (len(runs), task.is_waiting, supervisor.problems()) == (1, False, [])


async def test_a_failed_store_restarts_nothing(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    supervisor = Supervisor()

    async def work() -> None:
        raise StoreFailed("the disk is gone")

    task = supervisor.run("work", work)
    await asyncio.wait_for(task.finished.wait(), 60)
    assert (supervisor.states(), caplog.text) == ([], "")


async def test_a_failing_task_is_reported_while_another_one_of_its_name_runs_and_ends() -> None:
    supervisor, broken = Supervisor(), [True]

    async def work() -> None:
        if broken[0]:
            raise ValueError("broken")

    async def nothing() -> None:
        pass

    first = supervisor.run("work", work)
    await eventually(lambda: supervisor.deaths["work"] > 0)
    await supervisor.run("work", nothing).finished.wait()
    assert supervisor.problems()
    broken[0] = False
    await first.finished.wait()
    assert supervisor.problems() == []
