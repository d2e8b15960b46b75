"""What a source must do, rule by rule, in the sentences of docs/connector-protocol.md."""

from dataclasses import dataclass
from enum import Enum

PAGE = "docs/connector-protocol.md"


class Rule(Enum):
    """Each value is a sentence of the page, and the page's section that has it."""

    HELLO = "The *initiator* connects and sends HELLO", "Frames"
    MALFORMED = "Anything else in a body, including one byte too many, is malformed", "Frames"
    FRAME_SIZE = "A length over 4 MiB is refused before its bytes are read", "Frames"
    VERSION = (
        "**Version** is exactly `0.0.1`, or `0.0.1+migrate` from a source that supports MIGRATE",
        "A source's session",
    )
    WAITS_FOR_OK = "After HELLO a source sends nothing until OK arrives.", "What a source must do"
    LEGAL = "It sends only what its session's diagram allows.", "What a source must do"
    NOTIFIES = "Before the first message of a stream it sends NOTIFY", "What a source must do"
    NOTIFY_ONCE = "NOTIFY for a stream that this session has open is an error.", "A stream"
    OPEN = "It sends MESSAGE and EOS_MESSAGE only for a stream whose NOTIFY_ACK had success 1.", "What a source must do"
    ASKS_AGAIN = "A stream that was refused is requested again after the ACK that follows.", "What a source must do"
    CREDIT = "A MESSAGE without credit is a protocol error.", "Credits"
    USES_CREDITS = "It uses the credits that it gets", "What a source must do"
    END_WITHOUT_CREDIT = "NOTIFY and MESSAGE spend one credit each, EOS_MESSAGE none.", "Credits"
    IDS_GROW = "**Message ids** grow inside a stream.", "A stream"
    RESERVED_ID = "no message may have it as its id", "A stream"
    SAME_MESSAGE = "The same id always stands for the same message.", "What a source must do"
    RESUMES = "continues with the first message after the id in NOTIFY_ACK", "What a source must do"
    NO_DUPLICATES = "A message that is stored need not be sent again", "What a source must do"
    ENDS = "When a stream is over, it sends EOS_MESSAGE", "What a source must do"
    WAITS_FOR_ACKS = "It stays connected until everything is acknowledged.", "What a source must do"
    RECONNECTS = "When the connection is lost, it connects again and resumes", "What a source must do"
    PAUSES = "It pauses before it connects again, longer after each failure", "What a source must do"
    RESTART = "After RESTART it closes the connection, and connects to the address in it", "What a source must do"
    ERROR = "After ERROR it sends nothing more and closes the connection.", "What a source must do"
    ERROR_IS_FINAL = "It does not try again: the answer would be the same.", "What a source must do"
    MIGRATE_ENDS = (
        "**On MIGRATE**, send EOS_MESSAGE for each stream whose NOTIFY_ACK had success 1",
        "Migration",
    )
    MIGRATE_ACK = (
        "**Connect, HELLO, OK** at the new address, then MIGRATE_ACK at the old one",
        "Migration",
    )
    MIGRATE_FAILS = "**If anything fails**, try both addresses.", "Migration"

    @property
    def title(self) -> str:
        """Its name as reports show it."""
        return self.name.lower().replace("_", "-")

    @property
    def sentence(self) -> str:
        return self.value[0]

    @property
    def section(self) -> str:
        return self.value[1]

    @property
    def is_advice(self) -> bool:
        """Whether workers tolerate a violation."""
        return self in (Rule.NO_DUPLICATES, Rule.PAUSES, Rule.ERROR_IS_FINAL)


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that the client did wrong. Without a rule, the program under test does not meet the suite's needs."""

    text: str
    rule: Rule | None = None
    connection: int | None = None
    """Of the scenario's connections, counted from 1."""

    @property
    def is_warning(self) -> bool:
        return self.rule is not None and self.rule.is_advice


class Violation(Exception):
    """Ends the scenario, and with it the session that caused it."""

    def __init__(self, text: str, rule: Rule | None = None) -> None:
        super().__init__(text)
        self.rule = rule
