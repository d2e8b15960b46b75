"""Sockets that notice when the other end is gone, and a `select` that another thread ends."""

from penstock.client.sockets import Waker


def test_waking_a_loop_that_has_ended_does_nothing() -> None:
    waker = Waker()
    waker.wake()
    waker.close()
    waker.wake()
    assert waker.fileno() == -1
