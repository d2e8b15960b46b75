"""Where servers listen, and what people are told when they cannot."""

from collections.abc import Iterator
from contextlib import contextmanager

from penstock.connectors.api import Lost


def claims_of(host: str, port: int) -> frozenset[str]:
    """What a server has for itself."""
    return frozenset({_shown(host, port)}) if port else frozenset()


def _shown(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


@contextmanager
def told_where(host: str, port: int) -> Iterator[None]:
    """An OSError within is Lost, and says where it could not listen: not all of them do."""
    try:
        yield
    except OSError as error:
        reason = (error.strerror or str(error)).rpartition(": ")[2]
        hint = "Take another port, or an address of this machine."
        raise Lost(f"it cannot listen on {_shown(host, port)}: {reason}", hint) from error
