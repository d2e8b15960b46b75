"""Which streams may send, and the signals between sources and sinks.

signals.py   `stream-started` and `stream-closed` to sinks; the gate that sources ask
table.py     all breakers, and an operator's pauses
breaker.py   one breaker (passing, tripped, probing), and the breakers of one sink
"""
