"""Bulk encoding, for delivery: columns of events as MESSAGE frames of a sink's stream 1, a buffer at a time.

    event times, keys, values, the first message id ──▶ encode_output ──▶ frames, one behind the other

With numba (`pip install penstock-streams[fast]`) this is a compiled kernel, else plain Python with the same results.
"""

from penstock.protocol.connector.output.implementation import COMPILED, encode_output

__all__ = ["COMPILED", "encode_output"]
