"""Who had a stream, by the journal of a registry."""

import struct
from collections.abc import Sequence

from penstock.ingest.stream_claims import Begin, Claim, ClaimId, Command, Relinquish, encode
from penstock.protocol.connector import NOTHING_YET
from tests.worker.stored_tenures import Tenure, tenures_of

STREAM = 7


def journal(commands: Sequence[Command]) -> bytes:
    rows = [*map(encode, commands)]
    return b"".join(struct.pack(">I", len(row)) + row for row in rows)


def claim(partition: int, number: int, term: int = 1) -> Claim:
    return Claim(STREAM, ClaimId(partition, term, number))


def relinquish(claim: Claim, last_id: int, term: int = 1, *, is_complete: bool = True) -> Relinquish:
    return Relinquish(STREAM, claim.claim, term, last_id, is_complete)


def test_a_tenure_lasts_from_a_claim_to_its_relinquish() -> None:
    first, second = claim(0, 1), claim(1, 1)
    commands: list[Command] = [
        first,
        second,
        relinquish(first, 9),
        claim(1, 2),
        relinquish(claim(1, 2), NOTHING_YET),
        claim(0, 2),
    ]
    assert tenures_of(journal(commands)) == {STREAM: [Tenure(0, -1, 9), Tenure(1, 9, 9), Tenure(0, 9)]}
    assert [Tenure(1, 9, 12).has(one) for one in (9, 10, 12, 13)] == [False, True, True, False]


def test_a_partition_that_claims_again_continues() -> None:
    """Its relinquish was lost, or its shard was taken over."""
    commands: list[Command] = [claim(0, 1), claim(0, 2), Begin(0, 2), relinquish(claim(0, 2), 5, term=2), claim(1, 1)]
    assert tenures_of(journal(commands)) == {STREAM: [Tenure(0, -1, 5), Tenure(1, 5)]}
