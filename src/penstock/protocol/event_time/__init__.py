"""Event times from the data: a field of JSON, CSV or MessagePack, found and parsed by kernels, a block at a time."""
