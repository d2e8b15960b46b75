"""A read that fails on each path: every read of the journal fails, one at a time, with all reads of its file for a
while.
"""

import errno
from pathlib import Path

from tests.operate.life import Fault, Life


class UnreadableFile(Fault):
    """From one read on, the file cannot be read for a while."""

    _name = ""

    def concerns(self, operation: str) -> bool:
        return operation.startswith("read ")

    def begin(self) -> None:
        self._name = self.failed

    def end(self) -> None:
        self._name = ""

    def fail_first(self) -> None:
        self.fail_on(self.failed)

    def fail_on(self, operation: str) -> None:
        if operation == self._name:
            raise OSError(errno.EIO, "Input/output error")


def run_cell(folder: Path, step: str, number: int) -> tuple[str, str] | None:
    """As in `disk`. Whoever asks gets an error that names the file, and /health shows it."""
    fault = UnreadableFile(step, number)
    life = Life(folder, fault)
    life.run()
    if not fault.failed:
        return None
    for text in (*life.stops, *life.answers):
        assert "Input/output error" in text, text
        assert ".journal" in text, text
    for text in life.health:
        assert "background task" not in text, text
    is_reported = any(".journal" in text for text in life.health)
    assert is_reported or not life.answers, (life.answers, life.health)
    return fault.failed, _followed(life, is_reported=is_reported)


def _followed(life: Life, *, is_reported: bool) -> str:
    if life.stops:
        is_partial = life.stops[0].startswith("pipelines are refused")
        return f"{'ran without pipelines until it was restarted' if is_partial else 'did not start'}: {life.stops[0]}"
    if life.answers:
        return f"whoever asked got: {life.answers[0]}"
    return "went on, and /health named the file" if is_reported else "went on, and tried again"
