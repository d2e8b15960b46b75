"""What a sink has committed, compared with a calculation that knows neither Penstock nor Spark: at any time a prefix of
what must come, and nothing twice.
"""

import json
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from penstock.client.sink import read_committed
from penstock.core.errors import RequestError
from tests.delivery.crasher.events import ALL, KEYS_A_STREAM, LINES, Line, count_of, sum_of_first, text


class Check(Protocol):
    def take(self, lines: Sequence[bytes], epoch: int) -> None:
        """Check the next committed lines, up to the end of this epoch. Raises AssertionError for a wrong one."""

    @property
    def positions(self) -> dict[Line, int]:
        """How many messages of each stream have taken effect."""


class CopyCheck:
    """For a pipeline without a shuffle: byte for byte what was sent, per stream, in order, once."""

    def __init__(self) -> None:
        self._positions = dict.fromkeys(LINES, 0)

    @property
    def positions(self) -> dict[Line, int]:
        return self._positions

    def take(self, lines: Sequence[bytes], epoch: int) -> None:
        for found in lines:
            line = Line(*found.split(b":")[0].decode().split("/"))
            assert line in self._positions, f"nobody has sent {found!r}"
            number = self._positions[line] + 1
            assert found == text(line, number), f"{text(line, number)!r} must come next, and {found!r} does"
            self._positions[line] = number


class TallyCheck:
    """For a pipeline with state, which outputs all its results in every epoch: each result is that of a prefix of the
    streams, and there is one for each epoch. An epoch without messages, in which a stream was only reopened, repeats
    the results of the one before.
    """

    def __init__(self) -> None:
        self._counts: dict[str, int] = defaultdict(int)
        self._results = 0
        self._silent: int | None = None
        """Epochs before the first message."""
        self.positions = dict.fromkeys(LINES, 0)

    def take(self, lines: Sequence[bytes], epoch: int) -> None:
        for found in lines:
            self._row(**json.loads(found))
        silent = epoch - self._results
        if self._silent is None:
            self._silent = silent
        assert silent == self._silent, f"{self._results} results after epoch {epoch}, {self._silent} were without any"
        self._check_prefix()

    def _row(self, key: str, count: int, sum: int) -> None:  # noqa: A002 (the column's name)
        before = self._counts[key]
        assert count >= before, f"{key}: was {before} before, and is {count} now"
        if key == ALL:
            self._results += 1
        else:
            right = sum_of_first(int(key.rpartition("/")[2]), count)
            assert sum == right, f"{key}: the sum of {count} messages is {right}, not {sum}"
        self._counts[key] = count

    def _check_prefix(self) -> None:
        for line in LINES:
            counts = [self._counts[f"{line}/{residue}"] for residue in range(KEYS_A_STREAM)]
            last = sum(counts)
            right = [count_of(residue, last) for residue in range(KEYS_A_STREAM)]
            assert counts == right, f"{line}: {counts} are not the counts of its first {last} messages: {right}"
            self.positions[line] = last
        assert self._counts[ALL] == sum(self.positions.values())


class Watched:
    """A sink's file: `read_on` reads what was committed since the last call."""

    def __init__(self, file: Path, check: Check) -> None:
        self.file = file
        self.size = 0
        self._check = check

    def read_on(self) -> None:
        try:
            committed = read_committed(f"{self.file}.state")
        except (RequestError, FileNotFoundError):  # it has not started
            return
        end = committed.size
        assert end >= self.size, f"{self.file.name}: {self.size} bytes were committed, and now {end} are"
        if end > self.size:
            assert committed.transaction is not None
            epoch = int(committed.transaction.id.split(b":")[-2])
            with self.file.open("rb") as file:
                file.seek(self.size)
                found = file.read(end - self.size)
            assert len(found) == end - self.size, f"{self.file.name} is shorter than what is committed"
            assert found.endswith(b"\n"), f"{self.file.name}: what is committed ends within a line"
            self._check.take(found.splitlines(), epoch)
            self.size = end

    @property
    def committed(self) -> int:
        """The number of messages that have taken effect."""
        return sum(self._check.positions.values())

    def lacks(self, messages: int) -> dict[Line, int]:
        return {line: at for line, at in self._check.positions.items() if at != messages}


CHECKS: dict[str, type[CopyCheck] | type[TallyCheck]] = {"copy": CopyCheck, "tally": TallyCheck}
