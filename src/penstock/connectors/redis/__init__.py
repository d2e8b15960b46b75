"""Streams of Redis, as sources and as sinks."""
