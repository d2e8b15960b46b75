"""A participant that records its calls, and keeps its data as a durable one would."""

from collections.abc import Sequence

from penstock.client.sink import Message, Transaction


class Recorder:
    def __init__(self) -> None:
        self.calls: list[tuple[str, bytes] | tuple[str, int]] = []
        self.staged: list[Message] = []
        self.committed: list[Message] = []
        self.last = b""
        self.votes: list[bool] = []
        """The next ones; then yes."""

    def write(self, messages: Sequence[Message]) -> None:
        self.calls.append(("write", len(messages)))
        self.staged += messages

    def prepare(self, transaction: Transaction) -> bool:
        self.calls.append(("prepare", transaction.id))
        return self.votes.pop(0) if self.votes else True

    def commit(self, transaction: Transaction) -> None:
        self.calls.append(("commit", transaction.id))
        if transaction.id != self.last:
            self.last = transaction.id
            self.committed += self.staged
            self.staged = []

    def abort(self, transaction: Transaction) -> None:
        self.calls.append(("abort", transaction.id))
        self.staged = [message for message in self.staged if message.id < transaction.start]

    @property
    def payloads(self) -> list[bytes]:
        return [bytes(message.payload) for message in self.committed]


class AsyncRecorder:
    """The same, awaited."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder

    async def write(self, messages: Sequence[Message]) -> None:
        self._recorder.write(messages)

    async def prepare(self, transaction: Transaction) -> bool:
        return self._recorder.prepare(transaction)

    async def commit(self, transaction: Transaction) -> None:
        self._recorder.commit(transaction)

    def abort(self, transaction: Transaction) -> None:
        self._recorder.abort(transaction)
