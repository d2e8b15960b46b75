"""Notices when the event loop stalls, and finds out what it was doing.

Everything in a worker shares one loop: a call that blocks it blocks all clients. The loop beats every `BEAT_SECONDS`; a
thread watches the beat and, while it is late, samples the stack of the loop's thread.
"""

import asyncio
import logging
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from penstock.protocol.api.status import LoopStatus

log = logging.getLogger(__name__)

STALL_SECONDS = 0.25
BEAT_SECONDS = 0.05
LOG_SECONDS = 10.0
"""Stalls within this time after a logged one are only counted."""
_UNFINISHED_SECONDS = 5.0
"""A stall is logged when it is over, and one that lasts so long before that: it may never be over."""
_FRAMES_MAX = 12


@dataclass(slots=True)
class _Limit:
    """Which stalls are logged."""

    logged_at: float = -LOG_SECONDS
    left_out: int = 0

    def admits(self, now: float) -> bool:
        if now - self.logged_at < LOG_SECONDS:
            self.left_out += 1
            return False
        self.logged_at = now
        return True


class LoopWatch:
    """`start` and `stop` it in the loop that it watches."""

    def __init__(self) -> None:
        self.stalls = 0
        self.longest_seconds = 0.0
        self._lag_seconds = 0.0
        self._beat_at = time.monotonic()
        self._sample = ""
        self._warned_at = 0.0
        self._limit = _Limit()
        self._timer: asyncio.TimerHandle | None = None
        self._stopped = threading.Event()

    def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._thread_id = threading.get_ident()
        self._beat_at = time.monotonic()
        self._timer = self._loop.call_later(BEAT_SECONDS, self._beat)
        self._thread = threading.Thread(target=self._watch, name="penstock-loop-watch", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        if self._timer is not None:
            self._timer.cancel()

    def status(self) -> LoopStatus:
        return LoopStatus(
            stalls=self.stalls,
            longest_stall_seconds=round(self.longest_seconds, 3),
            lag_seconds=round(self._lag_seconds, 3),
        )

    # In the loop.

    def _beat(self) -> None:
        now = time.monotonic()
        late = now - self._beat_at - BEAT_SECONDS
        self._beat_at, self._lag_seconds = now, max(0.0, late)
        sample, self._sample = self._sample, ""
        if late > STALL_SECONDS:
            self._stalled(late, sample, now)
        self._timer = self._loop.call_later(BEAT_SECONDS, self._beat)

    def _stalled(self, seconds: float, sample: str, now: float) -> None:
        self.stalls += 1
        self.longest_seconds = max(self.longest_seconds, seconds)
        if not self._limit.admits(now):
            return
        more, self._limit.left_out = self._limit.left_out, 0
        before = f" ({more} more stalls since the last line like this)" if more else ""
        # Without a sample one call into C has kept all threads from running, or the machine has.
        log.warning("the event loop stalled for %.2f s%s in: %s", seconds, before, sample or "a call outside Python")

    # In the thread.

    def _watch(self) -> None:
        while not self._stopped.wait(BEAT_SECONDS):
            try:
                self._look()
            except Exception:  # the watch itself must not end unnoticed
                log.exception("the event loop could not be checked")

    def _look(self) -> None:
        beat_at = self._beat_at
        late = time.monotonic() - beat_at - BEAT_SECONDS
        if late <= STALL_SECONDS:
            return
        sample = _where(sys._current_frames().get(self._thread_id))  # noqa: SLF001  there is no other way
        if self._beat_at != beat_at:  # the stall is over: the sample shows something else
            return
        self._sample = self._sample or sample
        if late > _UNFINISHED_SECONDS and self._warned_at != beat_at:
            self._warned_at = beat_at
            log.error("the event loop has been stalled for %.0f s and still is, in: %s", late, sample)


def _where(frame: FrameType | None) -> str:
    """The calls that the thread is in, the innermost first, in one line."""
    calls: list[str] = []
    while frame is not None and len(calls) < _FRAMES_MAX:
        code = frame.f_code
        calls.append(f"{Path(code.co_filename).name}:{frame.f_lineno} {code.co_name}")
        frame = frame.f_back
    return " < ".join(calls)
