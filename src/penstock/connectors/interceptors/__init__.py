"""Bytes to records and back, per stream: the stages between a connector's peer and its events."""
