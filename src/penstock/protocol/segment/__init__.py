"""The segment protocol, both dialects."""
