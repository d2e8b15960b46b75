"""Who speaks the protocol with whom, and who of the two began."""

from enum import Enum


class Use(Enum):
    """What the connector at the other end of the worker is. "WRT the protocol description, roles of worker and
    connector are reversed" for a sink: there the worker initiates.
    """

    SOURCE = "source"
    SINK = "sink"


class Role(Enum):
    """Which side of a session we are: the initiator connects and says HELLO, the acceptor answers OK."""

    INITIATOR = "initiator"
    ACCEPTOR = "acceptor"

    @property
    def other(self) -> "Role":
        return Role.ACCEPTOR if self is Role.INITIATOR else Role.INITIATOR
