"""Where a source connects next, and when; time is a number here."""

import math

import pytest

from penstock.client.source.failures import Lost, Restarted, parse_address
from penstock.client.source.session import RECONNECTS, RESTARTS_MAX, Reconnecting
from penstock.core.address import Address
from penstock.core.errors import ProtocolError, RequestError

HOME = Address("home", 1)
LOST = Lost("lost")


def reconnecting(retry_seconds: float = 60.0) -> Reconnecting:
    """Its pauses are as long as they can be."""
    return Reconnecting([HOME], retry_seconds, lambda _, limit: limit)


def test_pauses_double_up_to_a_limit_and_start_over_after_progress() -> None:
    again = reconnecting(math.inf)
    pauses = [again.pause(LOST, 0.0) for _ in range(100)]
    assert pauses[:3] == [RECONNECTS.first_seconds, 2 * RECONNECTS.first_seconds, 4 * RECONNECTS.first_seconds]
    assert pauses[-1] == RECONNECTS.max_seconds
    again.progressed()
    assert again.pause(LOST, 0.0) == RECONNECTS.first_seconds


def test_pauses_are_random() -> None:
    again = Reconnecting([HOME], math.inf)
    pauses = [again.pause(LOST, 0.0) for _ in range(50)]
    assert len(set(pauses)) > 40
    assert all(0 <= pause <= RECONNECTS.max_seconds for pause in pauses)


def test_the_error_is_raised_when_the_time_without_progress_is_over() -> None:
    again = reconnecting(10.0)
    for now in (100.0, 105.0, 109.9):
        again.pause(LOST, now)
    with pytest.raises(Lost):
        again.pause(LOST, 110.0)
    again.progressed()
    again.pause(LOST, 111.0)


def test_a_restart_s_address_and_the_first_one_take_turns_when_nobody_answers() -> None:
    again = reconnecting()
    again.pause(Restarted(HOME, "other:7"), 0.0)
    assert again.address == Address("other", 7)
    again.pause(Restarted(HOME, ""), 0.0)
    assert again.address == Address("other", 7)
    for expected in (HOME, Address("other", 7), HOME):
        again.not_connected()
        assert again.address == expected
    again.pause(Restarted(HOME, "home:1"), 0.0)
    again.not_connected()
    assert again.address == HOME


def test_a_restart_is_not_a_failure_but_a_cycle_of_them_is() -> None:
    again = reconnecting(0.0)
    for _ in range(RESTARTS_MAX):
        again.pause(Restarted(HOME, "other:7"), 0.0)
    with pytest.raises(Restarted):
        again.pause(Restarted(HOME, "other:7"), 0.0)


def test_a_restart_to_an_invalid_address_is_the_worker_s_fault() -> None:
    with pytest.raises(ProtocolError, match="RESTART"):
        reconnecting().pause(Restarted(HOME, "a:b"), 0.0)


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("host", Address("host", 7100)),
        ("host:", Address("host", 7100)),
        ("host:5", Address("host", 5)),
        ("[::1]", Address("::1", 7100)),
        ("[::1]:5", Address("::1", 5)),
    ],
)
def test_an_address_may_leave_the_port_out(text: str, address: Address) -> None:
    assert parse_address(text) == address


def test_what_is_not_an_address_is_an_error() -> None:
    for text in ("", ":", "host:port", "host:70000"):
        with pytest.raises(RequestError):
            parse_address(text)
