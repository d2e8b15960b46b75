import subprocess
import sys

import pytest

from . import fuzz

EVENTS = 30_000


@pytest.mark.slow
def test_the_decoders_agree_on_mutated_events_and_the_kernels_stay_in_their_buffers() -> None:
    # In a process of its own: a kernel that leaves its buffer is killed for it.
    command = [sys.executable, "-m", "tests.protocol.stored.fuzz", "1", str(EVENTS)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=250, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    refused = int(done.stdout.splitlines()[1].split()[0])
    assert EVENTS / 40 < refused < EVENTS / 7  # some mutations are harmless, most are not


def test_a_buffer_that_fails_is_reported_with_its_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fuzz, "_decoded", lambda *_: (None, str(object())))
    with pytest.raises(AssertionError, match=r"^seed 5, buffer 0: "):
        fuzz.run(5, 1)
