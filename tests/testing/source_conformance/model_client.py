"""A source client in memory, with a clock of its own. It is correct, or has one defect."""

from dataclasses import dataclass, field

from penstock.core.address import Address
from penstock.protocol.connector import (
    NOTHING_YET,
    Ack,
    Decoder,
    EndOfStream,
    Error,
    Frame,
    Hello,
    Message,
    Migrate,
    MigrateAck,
    Notify,
    NotifyAck,
    Ok,
    Restart,
    Use,
    encode,
)
from penstock.testing.source_conformance.connection import Send
from penstock.testing.source_conformance.play import Play, Verdict
from penstock.testing.source_conformance.scenarios import FIRST, NOBODY, Scenario

ADDRESSES = (Address("first", 1), Address("other", 2), Address("nobody", 3))
STREAMS = (7, 8)
LAST = 100
PAUSE_SECONDS = 0.1


@dataclass(slots=True)
class Wire:
    """One connection of the client."""

    number: int
    worker: int
    decoder: Decoder = field(default_factory=lambda: Decoder(Use.SOURCE))
    out: list[bytes] = field(default_factory=list)
    credits: int = 0
    next: dict[int, int] = field(default_factory=dict)
    """Open streams, and what follows."""
    ended: set[int] = field(default_factory=set)
    refused: set[int] = field(default_factory=set)
    target: int | None = None
    is_open: bool = False
    is_closed: bool = False

    def send(self, *frames: Frame) -> None:
        self.out += map(encode, frames)


class ModelClient:
    def __init__(self, defect: str = "") -> None:
        self._defect = defect
        self._wires: list[Wire] = []
        self._worker = FIRST
        self._done: set[int] = set()
        self._was_sent: dict[int, int] = {}
        self._connect_at = 0.0
        self.is_over = False

    def perform(self, scenario: Scenario) -> Verdict:
        now = 0.0
        play = Play(scenario, now, 10.0)
        while not play.is_over:
            if not self._step(play, now):
                if self.is_over and all(wire.is_closed for wire in self._wires):
                    play.left(now)
                play.poll(now)
                now += 0.05
        self._carry_out(play, now)
        return play.verdict

    def has(self, defect: str) -> bool:
        return self._defect == defect

    def _step(self, play: Play, now: float) -> bool:
        """Returns whether anything has happened."""
        has_moved = self._carry_out(play, now)
        wires = [wire for wire in self._wires if not wire.is_closed]
        if not wires and not self.is_over and now >= self._connect_at:
            self._connect(play, self._worker, now)
            return True
        for wire in wires:
            self._fill(wire)
            out, wire.out = wire.out, []
            if out:
                play.received(wire.number, b"".join(out), now)
                has_moved = True
            if not play.is_over and self._leave_if_done(play, wire, now):
                has_moved = True
        return has_moved

    def _carry_out(self, play: Play, now: float) -> bool:
        effects = play.take()
        for effect in effects:
            wire = self._wires[effect.connection]
            if wire.is_closed:
                continue
            if isinstance(effect, Send):
                for frame in wire.decoder.feed(effect.data):
                    if not wire.is_closed:
                        self._handle(play, wire, frame, now)
            else:
                self._lost(play, wire, now)
        return bool(effects)

    def _connect(self, play: Play, worker: int, now: float) -> Wire:
        wire = Wire(play.connected(worker, ADDRESSES, now), worker)
        self._wires.append(wire)
        match self._defect:
            case "no hello":
                wire.send(Notify(7, "a"))
            case "garbage":
                wire.out.append(bytes.fromhex("00000002 63 00"))
            case "huge":
                wire.out.append(bytes.fromhex("00ffffff 05"))
            case "version":
                wire.send(Hello("3", b"", "model", "model"))
            case _:
                version = "0.0.1" if self.has("no migrate") else "0.0.1+migrate"
                wire.send(Hello(version, b"", "model", "model"))
        if self.has("early notify"):
            wire.send(Notify(7, "a"))
        return wire

    def _lost(self, play: Play, wire: Wire, now: float) -> None:
        self._close(play, wire, now)
        self._connect_at = now if self.has("no pauses") else now + PAUSE_SECONDS
        self._worker = FIRST if wire.target is None else wire.target
        if self.has("never reconnects"):
            self.is_over = True

    def _close(self, play: Play, wire: Wire, now: float) -> None:
        wire.is_closed = True
        play.closed(wire.number, now)

    def _handle(self, play: Play, wire: Wire, frame: Frame, now: float) -> None:
        match frame:
            case Ok():
                self._opened(wire, frame)
            case NotifyAck():
                self._answered(wire, frame)
            case Ack():
                self._acked(play, wire, frame, now)
            case Restart():
                elsewhere = [one for one, address in enumerate(ADDRESSES) if str(address) == frame.address]
                wire.target = elsewhere[0] if elsewhere and not self.has("ignores address") else None
                self._lost(play, wire, now)
            case Migrate():
                self._migrate(play, wire, frame, now)
            case Error() if not self.has("ignores error"):
                self._close(play, wire, now)
                self.is_over = not self.has("tries again")
                self._connect_at = now + PAUSE_SECONDS

    def _opened(self, wire: Wire, frame: Ok) -> None:
        wire.credits += frame.credits
        wire.is_open = True
        for old in self._wires:
            if old.target is not None and not self.has("no migrate ack"):
                old.send(MigrateAck())
        if self.has("no notify"):
            wire.send(Message(7, 1, 0, b"", b"1"))
        if self.has("answers ok"):
            wire.send(Ok(1))
        for stream_id in sorted(set(STREAMS) - self._done):
            self._notify(wire, stream_id)

    def _notify(self, wire: Wire, stream_id: int) -> None:
        wire.credits -= 1
        wire.send(Notify(stream_id, f"stream {stream_id}"))
        if self.has("sends before answer"):
            wire.send(Message(stream_id, 1, 0, b"", b"1"))

    def _answered(self, wire: Wire, frame: NotifyAck) -> None:
        if not frame.success:
            wire.refused.add(frame.stream_id)
            return
        stored = 0 if frame.point_of_reference == NOTHING_YET else frame.point_of_reference
        if self.has("starts over"):
            stored = 0
        if self.has("resumes where it was"):
            stored = self._was_sent.get(frame.stream_id, 0)
        wire.next[frame.stream_id] = stored + 1
        if self.has("notifies twice"):
            wire.send(Notify(frame.stream_id, "again"))
        if wire.target is not None:
            self._release(wire)

    def _acked(self, play: Play, wire: Wire, frame: Ack, now: float) -> None:
        wire.credits += frame.credits
        if frame.credits and wire.refused and not self.has("gives streams up"):
            self._notify(wire, wire.refused.pop())
        for stream_id, point_of_reference in frame.acked:
            if stream_id in wire.ended and point_of_reference == LAST and wire.target is None:
                self._done.add(stream_id)
        if wire.target is not None and not frame.credits and not frame.acked:
            self._go(play, wire, now)

    def _migrate(self, play: Play, wire: Wire, frame: Migrate, now: float) -> None:
        wire.target = [address.host for address in ADDRESSES].index(frame.host)
        if wire.is_open:
            self._release(wire)
        else:
            self._go(play, wire, now)

    def _release(self, wire: Wire) -> None:
        for stream_id in [] if self.has("no ends at migrate") else sorted(wire.next):
            wire.send(EndOfStream(stream_id))
            del wire.next[stream_id]

    def _go(self, play: Play, wire: Wire, now: float) -> None:
        assert wire.target is not None
        if wire.target != NOBODY:
            self._connect(play, wire.target, now)
        elif not self.has("waits for nobody"):
            wire.target = None
            self._lost(play, wire, now)

    def _fill(self, wire: Wire) -> None:
        """Send what may be sent."""
        if wire.target is not None or self.has("never sends"):
            return
        for stream_id in list(wire.next):
            has_ended = wire.next[stream_id] > LAST
            while not has_ended and (wire.credits > 0 or self.has("ignores credits")):
                wire.credits -= 1
                wire.send(self._message(stream_id, wire.next[stream_id]))
                self._was_sent[stream_id] = wire.next[stream_id]
                wire.next[stream_id] += 1
                has_ended = wire.next[stream_id] > LAST
            may_end = wire.credits > 0 or not self.has("ends with credit only")
            if has_ended and may_end and not self.has("never ends"):
                del wire.next[stream_id]
                wire.ended.add(stream_id)
                wire.send(EndOfStream(stream_id))

    def _message(self, stream_id: int, message_id: int) -> Message:
        payload = f"{message_id} {len(self._wires) if self.has('changes messages') else ''}".encode()
        if self.has("repeats an id"):
            message_id = 1
        if self.has("reserved id"):
            message_id = NOTHING_YET
        return Message(stream_id, message_id, 0, b"", payload)

    def _leave_if_done(self, play: Play, wire: Wire, now: float) -> bool:
        is_done = self._done == set(STREAMS)
        if self.has("leaves early"):
            is_done = wire.ended == set(STREAMS)
        if is_done and not wire.is_closed:
            self._close(play, wire, now)
            self.is_over = True
            return True
        return False


DEFECTS: dict[str, tuple[str, str]] = {
    "no hello": ("plain", "hello"),
    "garbage": ("plain", "malformed"),
    "huge": ("plain", "frame-size"),
    "version": ("plain", "version"),
    "early notify": ("plain", "waits-for-ok"),
    "answers ok": ("plain", "legal"),
    "no notify": ("plain", "notifies"),
    "notifies twice": ("plain", "notify-once"),
    "sends before answer": ("migrate-before-open", "open"),
    "gives streams up": ("stream-in-use", "asks-again"),
    "ignores credits": ("no-credits", "credit"),
    "never sends": ("no-credits", "uses-credits"),
    "ends with credit only": ("end-without-credit", "end-without-credit"),
    "repeats an id": ("plain", "ids-grow"),
    "reserved id": ("plain", "reserved-id"),
    "changes messages": ("lost-messages", "same-message"),
    "resumes where it was": ("lost-messages", "resumes"),
    "starts over": ("stored-not-acked", "no-duplicates"),
    "never ends": ("plain", "ends"),
    "leaves early": ("late-acks", "waits-for-acks"),
    "never reconnects": ("closes", "reconnects"),
    "no pauses": ("pauses", "pauses"),
    "ignores address": ("restart-elsewhere", "restart"),
    "ignores error": ("refused-cookie", "error"),
    "tries again": ("refused-cookie", "error-is-final"),
    "no ends at migrate": ("migrate", "migrate-ends"),
    "no migrate ack": ("migrate", "migrate-ack"),
    "waits for nobody": ("migrate-nowhere", "migrate-fails"),
}
"""For each defect a scenario that finds it, and the rule that it breaks."""
