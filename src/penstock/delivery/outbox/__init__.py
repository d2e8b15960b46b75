"""Sinks that lead to a connector's `in` port, and the outbox that retains rows of streams whose breaker is tripped.

    sink.py      one sink of a pipeline: an epoch's rows go out stream by stream
    sender.py    one send: rows leave, are retained in the outbox, or become dead letters; the outbox's drain
    in_port.py   the connector's side: one call of `deliver` at a time, breakers, probes
    outbox.py    the retained rows, in a segment
    epochs.py    how far each epoch is
    rows.py      rows, and what interceptors buffer and join

Each imports only those below it.
"""
