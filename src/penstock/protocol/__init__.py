"""Wire protocols without I/O: bytes in, messages out, and back. No socket, no clock."""
