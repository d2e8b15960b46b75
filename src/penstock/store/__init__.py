"""The segment store: a journal of records, and the segments that live in it."""
