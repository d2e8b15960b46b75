import subprocess
import sys

import pytest

from . import fuzz
from .guarded import Guarded

FRAMES = 20_000


def fuzzed(*arguments: str) -> "subprocess.CompletedProcess[str]":
    """In a process of its own: a kernel that leaves its buffer is killed for it."""
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, timeout=250, check=False)


@pytest.mark.slow
def test_the_decoders_agree_on_mutated_frames_and_the_kernels_stay_in_their_buffers() -> None:
    done = fuzzed("-m", "tests.protocol.connector.fuzz", "1", str(FRAMES))
    assert done.returncode == 0, done.stdout + done.stderr
    refused = int(done.stdout.splitlines()[1].split()[0])
    assert FRAMES / 40 < refused < FRAMES / 7  # some mutations are harmless, most are not


def test_a_buffer_that_fails_is_reported_with_its_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fuzz, "numbers_of", lambda columns: id(columns))
    with pytest.raises(AssertionError, match=r"^seed 5, buffer 0: "):
        fuzz.run(5, 1)


@pytest.mark.parametrize(("place", "index"), [("at_end", 8), ("at_start", -1)])
def test_guard_pages_cannot_be_accessed(place: str, index: int) -> None:
    code = (
        "import ctypes; from tests.protocol.connector.guarded import Guarded; guarded = Guarded();"
        f"view = guarded.{place}(b'12345678');"
        "start = ctypes.addressof(ctypes.c_ubyte.from_buffer(view));"
        "assert bytes(ctypes.string_at(start, 8)) == b'12345678';"
        f"ctypes.string_at(start + {index}, 1)"
    )
    assert fuzzed("-c", code).returncode == -11


def test_guarded_memory_holds_what_is_written_to_it() -> None:
    guarded = Guarded()
    assert bytes(guarded.at_start(b"abc")) == bytes(guarded.at_end(b"abc")) == b"abc"
    assert bytes(guarded.at_end(b"")) == b""
