"""Which stream of a connector people mean."""

from collections.abc import Container

from penstock.core.errors import RequestError
from penstock.gateway.gateway import Gateway
from penstock.gateway.stream_log import Standing


def find_stream(gateway: Gateway, connector: str, stream: str | int | None, deployed: Container[str]) -> int | None:
    """Its id, from its id or its name; None for all of the connector. Raises RequestError: there is no such connector
    or stream, or several streams that are open have the name.
    """
    try:
        streams = gateway.known(connector).streams
    except RequestError:
        if connector not in deployed:
            raise
        streams = {}
    if stream is None:
        return None
    if isinstance(stream, int):
        found = [stream] if stream in streams else []
    else:
        named = {stream_id: one for stream_id, one in streams.items() if one.name == stream}
        is_open = [stream_id for stream_id, one in named.items() if one.standing is not Standing.ENDED]
        found = is_open or [*named]
    if len(found) == 1:
        return found[0]
    if found:
        ids = ", ".join(f"#{one}" for one in found[:10])
        raise RequestError(f"{len(found)} streams of {connector!r} have the name {stream!r}", f"Say which: {ids}.")
    raise RequestError(f"connector {connector!r} has no stream {stream!r}", "Look which there are: penstock status")
