"""Which streams may send, and the signals between sources and sinks.

signals.py          `stream-started` and `stream-closed` to sinks; the gate that sources ask
started_streams.py  the started streams, where they lead, and whether they may send
table.py            the breakers of all sinks, and the pauses by operators
breaker.py          one breaker (passing, tripped, probing), and the breakers of one sink
"""
