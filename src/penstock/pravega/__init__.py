"""Scopes, streams and transactions, as Pravega's own clients use them: a controller beside the segment port."""
