"""Source programs: one stream each, at whatever process they find."""

from typing import TYPE_CHECKING

from penstock.protocol.connector.frames import NOTHING_YET
from tests.cluster.simulation.log import Part
from tests.cluster.simulation.process import FromProgram, Incoming, ShardProcess

if TYPE_CHECKING:
    from tests.cluster.simulation.cluster import Cluster

PATIENCE_SECONDS = 8.0
"""After which a program that gets no answer connects again, anywhere."""


class Connection:
    """Of a program to a process. What the process answers concerns this one alone: the program may have another by
    then, to the same process.
    """

    def __init__(self, program: "Program") -> None:
        self._program = program

    @property
    def stream(self) -> int:
        return self._program.stream

    def opened(self, process: ShardProcess, last_id: int) -> None:
        if self._program.connection is self:
            self._program.opened(process, last_id)

    def refused(self, process: ShardProcess, partition: int | None = None) -> None:
        if self._program.connection is self:
            self._program.refused(process, partition)

    def ended(self, process: ShardProcess) -> None:
        if self._program.connection is self:
            self._program.lost(process)


class Program:
    """Sends its messages 0, 1, 2, … in order, and goes on after what it was answered to be stored. Two programs may
    have the same stream: one of them is refused.
    """

    def __init__(self, cluster: "Cluster", stream: int, part: Part) -> None:
        self.cluster, self.stream, self.part = cluster, stream, part
        self.process: ShardProcess | None = None
        self.connection = Connection(self)
        """The one that it has, or had last."""
        self._next: int | None = None
        """The message to send; None while the stream is not open."""
        self._is_ending = False
        self._heard = 0.0

    def act(self) -> None:
        """Something that a program may do now."""
        random = self.cluster.random
        if self.process is None:
            if not self.cluster.is_ending:
                self._connect()
        elif self.cluster.scheduler.now - self._heard > PATIENCE_SECONDS or (
            not self.cluster.is_quiet and random.random() < 0.03
        ):
            self._disconnect()
        elif self._next is not None and not self._is_ending:
            self._send()

    def _connect(self) -> None:
        random = self.cluster.random
        if not self.cluster.is_quiet and random.random() < 0.2:
            self.part = random.choice(self.cluster.parts_with(self.part.source))
        shard = self.cluster.place(self.part.name)
        self.process, self.connection = self.cluster.network.any_owner(shard), Connection(self)
        self._next, self._is_ending, self._heard = None, False, self.cluster.scheduler.now
        self._to_process("notify")

    def _send(self) -> None:
        assert self._next is not None
        random = self.cluster.random
        self._heard = self.cluster.scheduler.now
        if random.random() < 0.15 or self.cluster.is_ending:
            self._is_ending = True
            self._to_process("end")
            return
        for _ in range(random.randint(1, 3)):
            self._to_process("message", self._next)
            self._next += 1

    def _disconnect(self) -> None:
        self._to_process("gone")
        self.process = self._next = None

    def _to_process(self, kind: str, message: int = 0) -> None:
        """In order, as a connection is."""
        if self.process is not None:
            self.process.receive(Incoming(FromProgram(self.connection, self.part, kind, message)))

    # From the process.

    def opened(self, process: ShardProcess, last_id: int) -> None:
        if process is self.process:
            self._next = 0 if last_id == NOTHING_YET else last_id + 1

    def refused(self, process: ShardProcess, partition: int | None = None) -> None:
        """Tries again later; where the stream belongs, if that was the reason."""
        if process is self.process:
            self.process = None
            self.part = self.part if partition is None else Part(self.part.source, partition)

    def lost(self, process: ShardProcess) -> None:
        if process is self.process:
            self.process = self._next = None
