"""Who gets in, and who makes room."""

from dataclasses import dataclass

from penstock.core.connection_limits import ConnectionLimits, address_of


@dataclass(eq=False)
class Guest:
    idle_since: float | None
    is_authenticated: bool = False
    is_evicted: bool = False

    def evict(self) -> None:
        self.is_evicted = True


def test_a_newcomer_replaces_the_longest_idle_of_its_own_address() -> None:
    limits = ConnectionLimits(10, 2)
    other, older, newer = Guest(0.0), Guest(1.0), Guest(2.0)
    assert limits.admit(other, "b")
    assert limits.admit(newer, "a")
    assert limits.admit(older, "a")
    assert limits.admit(Guest(3.0), "a")
    assert (other.is_evicted, older.is_evicted, newer.is_evicted) == (False, True, False)
    assert len(limits) == 3


def test_when_all_places_are_taken_the_address_with_most_makes_room() -> None:
    limits = ConnectionLimits(3, 3)
    greedy = [Guest(1.0), Guest(2.0)]
    modest = Guest(0.0)
    assert limits.admit(modest, "b")
    assert all(limits.admit(each, "a") for each in greedy)
    assert limits.admit(Guest(3.0), "c")
    assert [greedy[0].is_evicted, greedy[1].is_evicted, modest.is_evicted] == [True, False, False]


def test_unauthenticated_peers_make_room_before_authenticated_ones() -> None:
    limits = ConnectionLimits(2, 2)
    known, stranger = Guest(0.0, is_authenticated=True), Guest(1.0)
    assert limits.admit(known, "a")
    assert limits.admit(stranger, "a")
    assert limits.admit(Guest(2.0, is_authenticated=True), "a")
    assert (known.is_evicted, stranger.is_evicted) == (False, True)
    assert limits.admit(Guest(3.0), "a")
    assert known.is_evicted


def test_a_smaller_address_makes_room_where_all_of_the_largest_are_busy() -> None:
    limits = ConnectionLimits(3, 3)
    idle = Guest(0.0)
    assert all(limits.admit(each, "a") for each in (Guest(None), Guest(None)))
    assert limits.admit(idle, "b")
    assert limits.admit(Guest(1.0), "c")
    assert idle.is_evicted


def test_a_principal_counts_as_an_address_does() -> None:
    limits = ConnectionLimits(5, 2)
    first, second, third, stranger = (Guest(float(number), is_authenticated=True) for number in range(4))
    assert all(limits.admit(each, f"address {number}") for number, each in enumerate((first, second, third)))
    assert limits.identify(second, "p")
    assert limits.identify(third, "p")
    assert limits.admit(stranger, "b")
    assert limits.identify(stranger, "p")
    assert (first.is_evicted, second.is_evicted, third.is_evicted) == (False, True, False)
    stranger.idle_since = third.idle_since = None
    busy = Guest(None)
    assert limits.admit(busy, "c")
    assert not limits.identify(busy, "p")


def test_when_all_places_are_taken_the_principal_with_most_makes_room() -> None:
    limits = ConnectionLimits(4, 3)
    greedy = [Guest(3.0), Guest(4.0), Guest(5.0)]
    modest = Guest(0.0)
    assert limits.admit(modest, "a")
    for number, each in enumerate(greedy):
        assert limits.admit(each, f"address {number}")
        assert limits.identify(each, "p")
    assert limits.admit(Guest(6.0), "b")
    assert (greedy[0].is_evicted, modest.is_evicted) == (True, False)


def test_nobody_who_is_busy_is_closed() -> None:
    limits = ConnectionLimits(2, 1)
    busy = Guest(None)
    assert limits.admit(busy, "a")
    assert not limits.admit(Guest(0.0), "a")
    assert limits.admit(Guest(None), "b")
    assert not limits.admit(Guest(0.0), "c")
    assert not busy.is_evicted


def test_a_guest_that_leaves_makes_room() -> None:
    limits = ConnectionLimits(1, 1)
    first = Guest(None)
    assert limits.admit(first, "a")
    limits.leave(first)
    limits.leave(first)
    assert len(limits) == 0
    assert limits.admit(Guest(None), "a")


def test_a_local_socket_has_no_address() -> None:
    assert [address_of(("::1", 5, 0, 0)), address_of(""), address_of(None)] == ["::1", "", ""]
