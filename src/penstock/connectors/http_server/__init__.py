"""What the `http-server` connector is made of: a connection is a stream, a request some events of it, its answer what
comes back with their ids.
"""
