"""What the journal of a registry of streams says about who had which stream."""

from dataclasses import dataclass

from penstock.ingest.stored_claims import rows_of
from penstock.ingest.stream_claims import Claim, Granted, Relinquish, StreamClaims, decode, later
from penstock.protocol.connector import NOTHING_YET


@dataclass
class Tenure:
    """A partition's, from the claim that it was granted until it gave the stream up."""

    partition: int
    after: int
    """The last stored id that the registry knew when it granted the claim; -1: none."""
    until: int | None = None
    """That of the relinquish. None: the partition has the stream."""

    def has(self, message_id: int) -> bool:
        return self.after < message_id and (self.until is None or message_id <= self.until)


def tenures_of(data: bytes) -> dict[int, list[Tenure]]:
    """By stream id, in order, from the first claim on. Raises AssertionError if two of them overlap."""
    claims, found = StreamClaims(), dict[int, list[Tenure]]()
    rows = rows_of(data)
    for row in rows:
        command = decode(row)
        holder = claims.holder(command.stream_id) if isinstance(command, Claim | Relinquish) else None
        answer = claims.apply(command).answer
        if isinstance(command, Claim) and isinstance(answer, Granted):
            those = found.setdefault(command.stream_id, [])
            after = _number(answer.last_id)
            if holder is None:
                assert after == (those[-1].until if those else -1), those
                those.append(Tenure(command.claim.partition, after))
            assert those[-1].partition == command.claim.partition, (those, command)
        elif isinstance(command, Relinquish) and holder == command.claim:
            tenure = found[command.stream_id][-1]
            after = tenure.after if tenure.after >= 0 else NOTHING_YET
            tenure.until = _number(later(after, command.last_id))
    return found


def _number(last_id: int) -> int:
    return -1 if last_id == NOTHING_YET else last_id
