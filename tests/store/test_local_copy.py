"""A local copy is read as if every write had reached its file, wherever the bytes are."""

from random import Random
from threading import Thread

import pytest

from penstock.core.errors import Unavailable
from penstock.store.local_copy import LocalCopy
from penstock.testing.memory_files import MemoryFiles


class Scene:
    """A copy, and what the bucket has of its file."""

    def __init__(self) -> None:
        self.file = MemoryFiles().create("copy")
        self.stored = bytearray(4000)
        self.fetched: list[tuple[int, int]] = []
        self.is_reachable = True
        self.copy = LocalCopy(self.file, lambda: False, self.fetch)

    def fetch(self, offset: int, length: int) -> bytes:
        if not self.is_reachable:
            raise Unavailable("the bucket cannot be reached")
        self.fetched.append((offset, length))
        return bytes(self.stored[offset : offset + length])

    def hold(self, offset: int, data: bytes) -> None:
        self.copy.hold(offset, data)
        self.stored[offset : offset + len(data)] = data


@pytest.fixture
def scene() -> Scene:
    return Scene()


def test_held_bytes_are_read_from_memory_and_not_written(scene: Scene) -> None:
    scene.hold(0, b"abcdef")
    assert scene.copy.read(2, 3) == b"cde"
    assert scene.file.size() == 0
    assert not scene.fetched
    assert not scene.copy.is_complete


def test_the_oldest_are_given_up_and_fetched_when_they_are_read(scene: Scene) -> None:
    scene.hold(0, b"abc")
    scene.hold(3, b"def")
    scene.copy.give_up(6, 3)
    assert scene.copy.read(4, 2) == b"ef"
    assert not scene.fetched
    assert scene.copy.read(1, 5) == b"bcdef"
    assert scene.fetched == [(1, 2)]


def test_what_the_bucket_does_not_have_is_not_given_up(scene: Scene) -> None:
    scene.hold(0, b"abc")
    scene.hold(3, b"def")
    scene.copy.give_up(5, 0)
    scene.is_reachable = False
    assert scene.copy.read(3, 3) == b"def"
    with pytest.raises(Unavailable):
        scene.copy.read(2, 2)


def test_a_write_over_what_was_given_up_keeps_the_bytes_around_it(scene: Scene) -> None:
    scene.hold(0, b"abcdef")
    scene.copy.give_up(6, 0)
    scene.is_reachable = False
    with pytest.raises(Unavailable):
        scene.copy.write(2, b"XY")
    scene.is_reachable = True
    scene.copy.write(2, b"XY")
    scene.fetched.clear()
    assert scene.copy.read(0, 6) == b"abXYef"
    assert not scene.fetched
    assert scene.copy.is_complete


@pytest.mark.parametrize("seed", range(100))
def test_any_order_of_writes_and_cuts_is_read_as_from_a_plain_file(seed: int) -> None:
    random, scene, model = Random(seed), Scene(), bytearray(4000)
    end = written = 0
    for _ in range(40):
        data = random.randbytes(random.randint(1, 80))
        match random.choice(("hold", "hold", "put off", "write", "give up", "truncate", "read")):
            case "hold":
                scene.copy.hold(end, data)
                model[end : end + len(data)] = data
                written = end = end + len(data)
            case "put off":
                scene.copy.put_off(end, data)
                model[end : end + len(data)] = data
                written = end = end + len(data)
            case "write":
                at = random.randint(0, end)
                scene.copy.write(at, data)
                model[at : at + len(data)] = data
                written = end = max(end, at + len(data))
            case "give up":
                scene.stored[:] = model
                scene.copy.give_up(written, random.choice((0, 50)))
            case "truncate":
                end = written = random.randint(0, end)
                scene.copy.truncate(end)
                model[end:] = bytes(4000 - end)
            case "read":
                at = random.randint(0, end)
                length = random.randint(0, end - at)
                assert scene.copy.read(at, length).ljust(length, b"\0") == model[at : at + length]
    assert scene.copy.read(0, end).ljust(end, b"\0") == model[:end]


def test_a_copy_can_be_written_and_cut_off_while_a_reader_waits_for_the_bucket(scene: Scene) -> None:
    """Whoever cuts it off holds a lock that the reader needs for the bucket: neither may wait for the other."""
    scene.hold(0, b"abc")
    scene.copy.give_up(3, 0)
    fetch = scene.fetch

    def write() -> None:
        scene.copy.hold(3, b"def")
        scene.copy.truncate(5)

    def slow(offset: int, length: int) -> bytes:
        writer = Thread(target=write, daemon=True)
        writer.start()
        writer.join(10)
        assert not writer.is_alive()
        return fetch(offset, length)

    scene.copy._fetch = slow
    assert scene.copy.read(0, 3) == b"abc"
    assert scene.copy.read(3, 2) == b"de"
