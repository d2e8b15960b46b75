"""A shard moves to another worker: what each of its sessions does, and what the shard does, step by step.

These decide, and do no input or output. The addendum's steps, and where they are here:

    0  a program is connected          SessionStep.STREAMING
    1  the worker sends MIGRATE        SessionStep.ENDING        ShardStep.ENDING
    2  the program stops sending
    3  and sends EOS_MESSAGE for all   SessionStep.ENDED
    4  the worker stores the last      SessionStep.SEALED        ShardStep.CLOSING
    5  the shard moves                                           ShardStep.RELEASED
    6  the worker sends the last ACKs  SessionStep.INVITED       ShardStep.TAKEN
    7, 8  the program connects to the other worker
    9  and sends MIGRATE_ACK here
    10 the worker closes               SessionStep.OVER          ShardStep.DONE
    11 the program resumes at the other worker

A program that does not know MIGRATE gets RESTART with the address in step 6, when the other worker can answer it. It
may send until step 4; what was not stored by then is not acknowledged, and it sends that again.

Every step has a time-out, and nothing depends on the program: acknowledged is what is stored, and the other worker's
NOTIFY_ACK says what that is.
"""

from enum import Enum

READY_SECONDS_MAX = 8.0
"""For the successor to report that it waits for the shard: it looks every 2 s, and is taken for dead after 6 s."""

END_SECONDS_MAX = 5.0
"""For programs to end their streams. A program that is slower loses nothing: it sends again what was not stored."""

TAKE_OVER_SECONDS_MAX = 20.0
"""For the successor to take over. It needs a tenth of a second; if it dies, another worker takes over after 6 s."""

LEAVE_SECONDS_MAX = 30.0
"""From the last ACK to MIGRATE_ACK: the other worker may have to read its log before it answers."""


class SessionStep(Enum):
    STREAMING = "streaming"
    ENDING = "ending its streams"
    ENDED = "streams ended"
    SEALED = "moving"
    """Everything that was received is stored, and nothing more is: what still arrives is discarded."""
    INVITED = "leaving"
    OVER = "over"


class SessionEvent(Enum):
    MOVE = "the shard is about to move"
    STREAMS_ENDED = "no stream is open any more"
    SEAL = "the journal is closed"
    TAKEN = "the successor has taken over"
    MIGRATE_ACK = "MIGRATE_ACK"
    TIMEOUT = "too late"
    ABANDONED = "the shard has not moved"


class Effect(Enum):
    """What a session does. In this order, if there are several."""

    SEND_MIGRATE = "send MIGRATE"
    WITHHOLD = "keep acknowledgements for later, grant no more credits, and refuse every NOTIFY that waits"
    RELEASE_STREAMS = "release all streams, which keep their positions and stay in the watermark"
    SEND_ACKS = "send the acknowledgements that were kept"
    INVITE = "send an empty ACK: there will be no more"
    SEND_RESTART = "send RESTART with the address"
    CLOSE = "close without an ERROR"


_S, _E, _F = SessionStep, SessionEvent, Effect
_Moves = dict[SessionEvent, tuple[SessionStep, tuple[Effect, ...]]]

_SEALING = (_S.SEALED, (_F.RELEASE_STREAMS,))
_CLOSING: tuple[SessionStep, tuple[Effect, ...]] = (_S.OVER, (_F.CLOSE,))

MIGRATING: dict[SessionStep, _Moves] = {
    # One that has not sent HELLO at MOVE comes too late.
    _S.STREAMING: {
        _E.MOVE: (_S.ENDING, (_F.SEND_MIGRATE, _F.WITHHOLD)),
        _E.SEAL: _CLOSING,
        _E.TIMEOUT: _CLOSING,
        _E.ABANDONED: _CLOSING,
    },
    # A program that is already at the other worker's door need not wait for the rest.
    _S.ENDING: {_E.STREAMS_ENDED: (_S.ENDED, ()), _E.SEAL: _SEALING, _E.MIGRATE_ACK: _CLOSING, _E.ABANDONED: _CLOSING},
    _S.ENDED: {_E.SEAL: _SEALING, _E.MIGRATE_ACK: _CLOSING, _E.ABANDONED: _CLOSING},
    _S.SEALED: {
        _E.TAKEN: (_S.INVITED, (_F.SEND_ACKS, _F.INVITE)),
        _E.MIGRATE_ACK: _CLOSING,
        _E.TIMEOUT: _CLOSING,
        _E.ABANDONED: _CLOSING,
    },
    _S.INVITED: {_E.MIGRATE_ACK: _CLOSING, _E.TIMEOUT: _CLOSING, _E.ABANDONED: _CLOSING},
    _S.OVER: {},
}
"""For a program that has announced `0.0.1+migrate`."""

RESTARTING: dict[SessionStep, _Moves] = {
    _S.STREAMING: {
        _E.MOVE: (_S.ENDED, (_F.WITHHOLD,)),
        _E.SEAL: _CLOSING,
        _E.TIMEOUT: _CLOSING,
        _E.ABANDONED: _CLOSING,
    },
    _S.ENDING: {},
    _S.ENDED: {_E.SEAL: _SEALING, _E.ABANDONED: _CLOSING},
    _S.SEALED: {
        _E.TAKEN: (_S.OVER, (_F.SEND_ACKS, _F.SEND_RESTART)),
        _E.TIMEOUT: _CLOSING,
        _E.ABANDONED: _CLOSING,
    },
    _S.INVITED: {},
    _S.OVER: {},
}
"""For any other program."""


class SessionMove:
    """One session. An event that changes nothing in its step has no effects."""

    __slots__ = ("_table", "step")

    def __init__(self, *, can_migrate: bool) -> None:
        self._table = MIGRATING if can_migrate else RESTARTING
        self.step = SessionStep.STREAMING

    def on(self, event: SessionEvent) -> tuple[Effect, ...]:
        self.step, effects = self._table[self.step].get(event, (self.step, ()))
        return effects

    @property
    def is_moving(self) -> bool:
        return self.step is not SessionStep.STREAMING

    @property
    def is_sealed(self) -> bool:
        return self.step in (SessionStep.SEALED, SessionStep.INVITED, SessionStep.OVER)


# The shard.


class ShardStep(Enum):
    """What `penstock cluster` shows of a move."""

    ASKING = "asking the successor"
    STOPPING = "stopping pipelines, connectors and sinks"
    ENDING = "sources end their streams"
    CLOSING = "closing the journal"
    RELEASED = "waiting for the successor"
    TAKEN = "sources leave"
    DONE = "moved"
    ABANDONED = "abandoned"


class ShardEvent(Enum):
    READY = "the successor waits for the shard"
    STOPPED = "only sources are connected"
    ENDED = "all sessions have ended their streams, or are gone"
    CLOSED = "the journal is closed, and the shard's record names the successor"
    TAKEN = "another worker owns the shard"
    LEFT = "all sessions are gone"
    TIMEOUT = "too late"
    TAKEN_BACK = "this worker owns the shard again"


_T, _V = ShardStep, ShardEvent

SHARD: dict[ShardStep, dict[ShardEvent, ShardStep]] = {
    # Nothing has changed until here, so a successor that does not answer costs nothing.
    _T.ASKING: {_V.READY: _T.STOPPING, _V.TIMEOUT: _T.ABANDONED},
    _T.STOPPING: {_V.STOPPED: _T.ENDING},
    _T.ENDING: {_V.ENDED: _T.CLOSING, _V.TIMEOUT: _T.CLOSING},
    _T.CLOSING: {_V.CLOSED: _T.RELEASED},
    _T.RELEASED: {_V.TAKEN: _T.TAKEN, _V.TAKEN_BACK: _T.ABANDONED, _V.TIMEOUT: _T.ABANDONED},
    _T.TAKEN: {_V.LEFT: _T.DONE, _V.TIMEOUT: _T.DONE, _V.TAKEN_BACK: _T.DONE},
    _T.DONE: {},
    _T.ABANDONED: {},
}

SHARD_SECONDS_MAX = {
    _T.ASKING: READY_SECONDS_MAX,
    _T.ENDING: END_SECONDS_MAX,
    _T.RELEASED: TAKE_OVER_SECONDS_MAX,
    _T.TAKEN: LEAVE_SECONDS_MAX,
}
"""When TIMEOUT happens. The other steps depend on this worker alone, and have limits of their own: the drain of its
servers, and 10 s for an object store that does not answer.
"""

FOR_SESSIONS = {
    _T.ENDING: SessionEvent.MOVE,
    _T.RELEASED: SessionEvent.SEAL,
    _T.TAKEN: SessionEvent.TAKEN,
    _T.DONE: SessionEvent.TIMEOUT,
    _T.ABANDONED: SessionEvent.ABANDONED,
}
"""What each step of the shard means for its sessions."""


class ShardMove:
    """One move of a shard, from this worker to `target`."""

    __slots__ = ("step", "target")

    def __init__(self, target: str = "") -> None:
        self.target = target
        self.step = ShardStep.ASKING

    def on(self, event: ShardEvent) -> SessionEvent | None:
        """What happens to all sessions; None: nothing. An event that changes nothing in its step is ignored."""
        before, self.step = self.step, SHARD[self.step].get(event, self.step)
        return FOR_SESSIONS.get(self.step) if self.step is not before else None

    @property
    def seconds_max(self) -> float | None:
        """How long this step may take; None: it has no time-out."""
        return SHARD_SECONDS_MAX.get(self.step)

    @property
    def is_over(self) -> bool:
        return self.step in (ShardStep.DONE, ShardStep.ABANDONED)
