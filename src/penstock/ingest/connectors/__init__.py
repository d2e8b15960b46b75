"""The port `out` of a hosted connector: its streams into the store."""
