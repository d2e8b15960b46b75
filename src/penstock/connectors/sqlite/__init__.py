"""The SQLite sink: the last value of each key."""
