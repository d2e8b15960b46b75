"""The connector protocol, without I/O: how programs outside talk to a worker, as sources and as sinks.

    received bytes ──▶ Decoder ──▶ frames ──▶ Session.receive, and Stream or Round for what concerns one
    frames ──▶ Session.send ──▶ bytes to send

`codec.py` is the table of what lies where; `session.py`, `stream.py` and `round.py` are the tables of what may follow
what. `bulk` is for a worker's gateway alone, and is not imported here: to speak the protocol needs no numpy or numba.
"""

from penstock.protocol.connector.batch import encode_messages
from penstock.protocol.connector.codec import FRAME_SIZE_CEILING, FRAME_SIZE_MAX, decode, encode, unwrap, wrap
from penstock.protocol.connector.credits import WINDOW_BYTES, Allowance, Credits, LargestFrame
from penstock.protocol.connector.decoder import Decoder
from penstock.protocol.connector.errors import LocalProtocolError, error_frame
from penstock.protocol.connector.frames import (
    MIGRATING_VERSION,
    NOTHING_YET,
    SINK_VERSION,
    SOURCE_VERSION,
    Ack,
    Acked,
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
)
from penstock.protocol.connector.hello import HelloCheck
from penstock.protocol.connector.roles import Role, Use
from penstock.protocol.connector.round import Round, RoundState
from penstock.protocol.connector.session import Closed, Session, State
from penstock.protocol.connector.stream import Side, Stream, StreamState
from penstock.protocol.connector.stream_id import stream_id_of
from penstock.protocol.connector.two_phase import (
    OUTPUT_STREAM,
    TWO_PHASE_STREAM,
    ListUncommitted,
    Phase1,
    Phase2,
    Range,
    Reply,
    ReplyUncommitted,
    TwoPhase,
)

__all__ = [
    "FRAME_SIZE_CEILING",
    "FRAME_SIZE_MAX",
    "MIGRATING_VERSION",
    "NOTHING_YET",
    "OUTPUT_STREAM",
    "SINK_VERSION",
    "SOURCE_VERSION",
    "TWO_PHASE_STREAM",
    "WINDOW_BYTES",
    "Ack",
    "Acked",
    "Allowance",
    "Closed",
    "Credits",
    "Decoder",
    "EndOfStream",
    "Error",
    "Frame",
    "Hello",
    "HelloCheck",
    "LargestFrame",
    "ListUncommitted",
    "LocalProtocolError",
    "Message",
    "Migrate",
    "MigrateAck",
    "Notify",
    "NotifyAck",
    "Ok",
    "Phase1",
    "Phase2",
    "Range",
    "Reply",
    "ReplyUncommitted",
    "Restart",
    "Role",
    "Round",
    "RoundState",
    "Session",
    "Side",
    "State",
    "Stream",
    "StreamState",
    "TwoPhase",
    "Use",
    "decode",
    "encode",
    "encode_messages",
    "error_frame",
    "stream_id_of",
    "unwrap",
    "wrap",
]
