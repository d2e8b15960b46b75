"""A driver is asked before anything changes, and nobody waits for one that is gone."""

import asyncio

import pytest

from penstock.application.driver_check import ANSWER_SECONDS_MAX, FOLLOWED_SECONDS, DriverCheck
from penstock.core.errors import RequestError
from tests.application.deployments import deployed, pipeline


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


NEW = deployed(pipeline("p"))


async def proposal(check: DriverCheck) -> int:
    while (proposed := check.proposed()) is None:  # noqa: ASYNC110
        await asyncio.sleep(0)
    assert proposed["deployment"] == NEW.as_json()
    return int(proposed["number"])


def asked_of(check: DriverCheck) -> "asyncio.Task[None]":
    """A driver follows, and is asked."""
    check.heard()
    return asyncio.create_task(check.check(NEW))


async def test_without_a_driver_nobody_is_asked() -> None:
    check = DriverCheck(Clock())
    await check.check(NEW)
    check.heard()
    check.left()
    await check.check(NEW)
    assert check.proposed() is None
    assert not check.is_followed


async def test_its_reasons_are_raised_and_nothing_is_proposed_any_more() -> None:
    check = DriverCheck(Clock())
    asked = asked_of(check)
    check.answer(await proposal(check), ["p has other keys", "q cannot be built"])
    with pytest.raises(RequestError) as caught:
        await asked
    assert str(caught.value).splitlines() == [
        "nothing was changed: what runs now keeps running",
        "p has other keys",
        "q cannot be built",
    ]
    assert check.proposed() is None


async def test_an_answer_to_an_older_proposal_is_ignored() -> None:
    check = DriverCheck(Clock())
    check.heard()
    first = asyncio.create_task(check.check(NEW))
    number = await proposal(check)
    check.answer(number, [])
    await first
    second = asyncio.create_task(check.check(NEW))
    newer = await proposal(check)
    check.answer(number, ["of before"])
    assert check.proposed() is not None
    check.answer(newer, [])
    await second


async def test_a_driver_that_falls_silent_counts_as_gone() -> None:
    clock = Clock()
    check = DriverCheck(clock)
    asked = asked_of(check)
    await proposal(check)
    clock.now += FOLLOWED_SECONDS + 1
    await asked
    assert check.proposed() is None
    assert not check.is_followed


async def seen(check: DriverCheck) -> int:
    """A driver has looked, and got the proposal."""
    number = await proposal(check)
    check.heard()
    return number


async def test_a_silent_driver_that_is_planning_is_awaited() -> None:
    clock = Clock()
    check = DriverCheck(clock)
    asked = asked_of(check)
    number = await seen(check)
    clock.now += FOLLOWED_SECONDS + 1
    await asyncio.wait([asked], timeout=1.5)  # it looks at the clock every second
    check.answer(number, ["p has other keys"])
    with pytest.raises(RequestError, match="p has other keys"):
        await asked


async def test_a_driver_that_has_seen_it_and_never_answers_lets_nothing_change() -> None:
    clock = Clock()
    check = DriverCheck(clock)
    asked = asked_of(check)
    await seen(check)
    clock.now += ANSWER_SECONDS_MAX + 1
    with pytest.raises(RequestError, match=r"the driver .* did not confirm within 60 s") as caught:
        await asked
    assert "Apply it again" in caught.value.hint


async def test_a_driver_that_leaves_without_an_answer_is_not_awaited() -> None:
    check = DriverCheck(Clock())
    asked = asked_of(check)
    await seen(check)
    check.left()
    await asked
    assert check.proposed() is None
