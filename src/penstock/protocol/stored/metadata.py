"""The metadata of a stored event: a MessagePack map. A connector may put anything into it that MessagePack can hold, so
everybody reads it here: with keys that are text, whatever they were.
"""

from collections.abc import Iterable
from typing import Any

import msgpack

from penstock.core.types import Buffer


def unpack_metadata(data: Buffer) -> dict[str, Any]:
    """Empty for no bytes. Keys are text, also in the maps inside: bytes are read as UTF-8, and 5 becomes "5". Raises
    ValueError for bytes that are not a map, or whose keys are nested too deep to become text.
    """
    if not data:
        return {}
    try:
        found = msgpack.unpackb(
            data, strict_map_key=False, unicode_errors="replace", object_pairs_hook=_with_text_as_keys
        )
    except msgpack.UnpackException as error:
        raise ValueError(f"metadata are not valid MessagePack: {error!r}") from None
    except RecursionError:
        raise ValueError("a key of the metadata is nested too deep") from None
    if not isinstance(found, dict):
        raise ValueError("metadata are not a map")
    return found


def known_metadata(data: Buffer | None) -> dict[str, Any]:
    """As `unpack_metadata`, but empty where that raises: what is beside an event must not stop it."""
    try:
        return unpack_metadata(data or b"")
    except ValueError:
        return {}


def _with_text_as_keys(pairs: Iterable[tuple[Any, Any]]) -> dict[str, Any]:
    return {key if type(key) is str else _text(key): value for key, value in pairs}


def _text(key: object) -> str:
    return key.decode(errors="replace") if isinstance(key, bytes) else str(key)
