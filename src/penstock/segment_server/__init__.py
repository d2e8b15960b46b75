"""Serves the segment store over the segment protocol."""
