"""Which port of a pipeline holds what a sink wants. It depends on the sink's own codec alone: others may come and go
beside it, and it stays where it is.
"""

PLAIN_CODECS = (None, "json", "binary")
"""What the port itself holds; rows in any other codec are in a port beside it."""

_LETTERS = ("err", "late")
"""Their ports hold original bytes, in no codec of ours."""


def port_for(port: str, codec: str | None) -> str:
    """Where the rows of a pipeline's port are for a sink with this codec."""
    return port if codec in PLAIN_CODECS or port in _LETTERS else f"{port}.{codec}"
