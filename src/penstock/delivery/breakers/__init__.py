"""Which streams may send, and the signals between sources and sinks.

signals.py          `stream-started` and `stream-closed` to sinks; the gate that sources ask
started_streams.py  the started streams, where they lead, and whether they may send
table.py            one breaker (passing, tripped, probing), those of one sink and of all, and pauses by operators
"""
