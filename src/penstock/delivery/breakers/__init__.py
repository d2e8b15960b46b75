"""Which stream may send, and the signals between sources and sinks."""
