"""The parts of the `http-server` connector: a connection is a stream, a request is some of its events, and the answer
is whatever comes back with their ids.
"""
