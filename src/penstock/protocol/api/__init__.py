"""The messages of the worker's HTTP API, one definition for client and server."""
