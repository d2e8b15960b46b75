"""One worker process: the store, its servers and its HTTP side, put together."""
