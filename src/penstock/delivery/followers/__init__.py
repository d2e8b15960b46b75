"""Sinks that cannot vote: standard output, HTTP, a function."""
