"""Sockets that notice when the other end is gone, and a `select` that another thread ends."""

from penstock.client.sockets import Waker


def test_waking_one_that_has_ended_meanwhile_does_nothing() -> None:
    waker = Waker()
    waker.wake()
    waker.close()
    waker.wake()
    assert waker.fileno() == -1
