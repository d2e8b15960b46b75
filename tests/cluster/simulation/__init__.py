"""A whole cluster without sockets, under a seeded scheduler; see `cluster.py`."""
