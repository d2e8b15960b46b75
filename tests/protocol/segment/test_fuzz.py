import pytest

from penstock.protocol.segment import Decoder

from .fuzz import CONVERSATIONS, Conversation, mutate_and_decode
from .streams import receive_pieces


@pytest.mark.parametrize("conversation", CONVERSATIONS, ids=lambda c: c.name)
def test_the_conversations_are_legal_before_they_are_mutated(conversation: Conversation) -> None:
    incoming, error = receive_pieces(Decoder(conversation.role), conversation.messages)
    assert (len(incoming), error) == (conversation.incoming, "")


@pytest.mark.parametrize("seed", range(4))
def test_only_protocol_errors_come_out_of_mutated_conversations(seed: int) -> None:
    refused = mutate_and_decode(seed, 5000)
    assert 1000 < refused < 5000  # some mutations are harmless, most are not
