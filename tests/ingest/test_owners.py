"""The registry of stream owners, against a model of it."""

from array import array

from hypothesis import given
from hypothesis import strategies as st

from penstock.ingest.owners import LocalRegistry, StreamKey, Use


class Owner:
    """A minimal `owners.StreamOwner`, whose methods are not called."""

    def acknowledge(self, stream_ids: "array[int]", last_ids: "array[int]") -> None: ...

    def gate_changed(self, stream_id: int, may_send: bool) -> None: ...

    def touch(self, stream_id: int) -> None: ...

    def stored_id(self, stream_id: int) -> int:
        return stream_id


OWNERS = [Owner(), Owner()]
KEYS = st.builds(StreamKey, st.sampled_from(["a", "b"]), st.sampled_from([0, 1, 2**64 - 1]))
STEPS = st.lists(st.tuples(st.sampled_from(["claim", "close", "release"]), KEYS, st.sampled_from(OWNERS)))


@given(STEPS)
def test_a_stream_has_one_owner_and_only_its_owner_can_close_or_release_it(
    steps: list[tuple[str, StreamKey, Owner]],
) -> None:
    registry = LocalRegistry()
    model: dict[StreamKey, tuple[Owner, Use]] = {}
    for step, key, owner in steps:
        holder, _ = model.get(key, (None, Use.INACTIVE))
        if step == "claim":
            assert registry.claim(key, owner) == (key not in model)
            model.setdefault(key, (owner, Use.ACTIVE))
        elif step == "close":
            registry.close(key, owner)
            if holder == owner:
                model[key] = owner, Use.CLOSING
        else:
            registry.release(key, owner)
            if holder == owner:
                del model[key]
        uses = [use for _, use in model.values()]
        assert registry.counts() == {use: uses.count(use) for use in (Use.ACTIVE, Use.CLOSING)}
        assert registry.use(key) is model.get(key, (None, Use.INACTIVE))[1]
