"""Bulk decoding, for the worker: MESSAGE frames a buffer at a time, with no Python code per message.

    received bytes ──▶ Receiver ──▶ frames, and Columns for each run of messages
    Columns ──▶ StreamTable.admit ──▶ Admission: what is new, and where each stream now is
    Columns, Admission ──▶ rewrite ──▶ stored events of each route, and their record's head
    Admission's streams ──▶ encode_acks ──▶ an ACK

Compiled kernels do the work. Importing `penstock.protocol.connector` alone does not load them: a program that speaks
the protocol needs neither numba nor numpy.
"""

from penstock.protocol.connector.bulk.columns import (
    DROPPED,
    NO_TIME,
    NOTHING_STORED,
    Admission,
    Column,
    Columns,
    Problem,
    Stop,
    Stored,
    Streams,
)
from penstock.protocol.connector.bulk.decoder import Receiver, StreamTable, encode_acks, rewrite, scan

__all__ = [
    "DROPPED",
    "NOTHING_STORED",
    "NO_TIME",
    "Admission",
    "Column",
    "Columns",
    "Problem",
    "Receiver",
    "Stop",
    "Stored",
    "StreamTable",
    "Streams",
    "encode_acks",
    "rewrite",
    "scan",
]
