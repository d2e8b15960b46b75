"""Bytes to records and back, per stream: what stands between a connector's peer and its events."""
