"""Bulk decoding, for the gateway: MESSAGE frames a buffer at a time, with no Python for each of them.

    received bytes ──▶ Receiver ──▶ frames, and Columns for each run of messages
    Columns ──▶ StreamTable.admit ──▶ Admission: what is new, and where each stream now is
    Columns, Admission ──▶ rewrite ──▶ stored events of each route, and what their record's head says
    Admission's streams ──▶ encode_acks ──▶ an ACK

With numba (`pip install penstock-streams[fast]`) these are compiled kernels, else plain Python with the same results. A
source or a sink needs none of it, and importing `penstock.protocol.connector` does not import it.
"""

from penstock.protocol.connector.bulk.columns import (
    DROPPED,
    NO_TIME,
    ROUTES_MAX,
    Admission,
    Column,
    Columns,
    Problem,
    Stop,
    Stored,
    Streams,
    Totals,
)
from penstock.protocol.connector.bulk.implementation import COMPILED, StreamTable, encode_acks, rewrite, scan
from penstock.protocol.connector.bulk.receiver import Receiver

__all__ = [
    "COMPILED",
    "DROPPED",
    "NO_TIME",
    "ROUTES_MAX",
    "Admission",
    "Column",
    "Columns",
    "Problem",
    "Receiver",
    "Stop",
    "Stored",
    "StreamTable",
    "Streams",
    "Totals",
    "encode_acks",
    "rewrite",
    "scan",
]
