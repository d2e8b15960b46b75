"""A correct worker in memory: it stores what arrives, and fails the test for what a source must not do."""

from collections import defaultdict
from collections.abc import Callable

from penstock.protocol.connector import (
    NOTHING_YET,
    Ack,
    Acked,
    EndOfStream,
    Error,
    Frame,
    Message,
    Notify,
    NotifyAck,
)
from tests.client.source.scripted_worker import Peer


class ModelWorker:
    """`credit` is given at first and given back one by one; `cut_after()` says after how many bytes a connection ends.

    A message is stored when it arrives, and acknowledged with every `ack_every`th.
    """

    def __init__(
        self,
        *,
        credit: int = 100,
        ack_every: int = 1,
        cut_after: Callable[[], int | None] = lambda: None,
        refusals: int = 0,
        piece_bytes: int | None = None,
    ) -> None:
        self.stored: defaultdict[str, list[Message]] = defaultdict(list)
        self.notified: list[str] = []
        self.ended: list[str] = []
        self.errors: list[str] = []
        self.order: list[str] = []
        self.refusals = refusals
        self._credits_at_first = credit
        self._ack_every = ack_every
        self._cut_after = cut_after
        self._piece_bytes = piece_bytes

    def ids(self, name: str) -> list[int]:
        return [message.message_id for message in self.stored[name]]

    def payloads(self, name: str) -> list[bytes]:
        return [bytes(message.payload) for message in self.stored[name]]

    def __call__(self, peer: Peer) -> None:
        """Serve one connection until it is closed."""
        peer.cut_after = self._cut_after()
        peer.greet(self._credits_at_first)
        self._credits = self._credits_at_first
        self._names: dict[int, str] = {}
        while True:
            self._take(peer, peer.next())

    def _take(self, peer: Peer, frame: Frame) -> None:
        match frame:
            case Notify():
                self._notify(peer, frame)
            case Message():
                self._message(peer, frame)
            case EndOfStream():
                name = self._names.pop(frame.stream_id)
                self.ended.append(name)
                if self.stored[name]:
                    self._send(peer, Ack(0, (Acked(frame.stream_id, self._last(name)),)))
            case Error():
                self.errors.append(frame.text)

    def _notify(self, peer: Peer, notify: Notify) -> None:
        self._credits -= 1
        self.notified.append(notify.name)
        assert notify.stream_id not in self._names
        if self.refusals:
            self.refusals -= 1
            self._send(peer, NotifyAck(False, notify.stream_id, 0))
        else:
            self._names[notify.stream_id] = notify.name
            self._send(peer, NotifyAck(True, notify.stream_id, self._last(notify.name)))
        self._give_back(peer)

    def _message(self, peer: Peer, message: Message) -> None:
        assert self._credits > 0, "a MESSAGE without credit"
        self._credits -= 1
        name = self._names[message.stream_id]  # it is open
        last = self._last(name)
        assert last == NOTHING_YET or message.message_id > last, "a MESSAGE that is stored already"
        self.stored[name].append(message)
        self.order.append(name)
        acked = (Acked(message.stream_id, message.message_id),) if len(self.order) % self._ack_every == 0 else ()
        self._give_back(peer, *acked)

    def _give_back(self, peer: Peer, *acked: Acked) -> None:
        self._credits += 1
        self._send(peer, Ack(1, acked))

    def _send(self, peer: Peer, frame: Frame) -> None:
        peer.send(frame, piece_bytes=self._piece_bytes)

    def _last(self, name: str) -> int:
        return self.stored[name][-1].message_id if self.stored[name] else NOTHING_YET
