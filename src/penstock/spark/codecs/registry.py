"""The codecs by name: Penstock's own, and those of other packages by entry points."""

from __future__ import annotations

from penstock.core.plugins import Registry
from penstock.spark.codecs.api import Codec
from penstock.spark.codecs.codec import CODECS as OWN
from penstock.spark.codecs.codec import About

_HOME = "penstock.spark.codecs."

REGISTRY: Registry[Codec] = Registry(
    "codec",
    {
        "binary": _HOME + "texts:Binary",
        "csv": _HOME + "csv_codec:Csv",
        "json": _HOME + "json_codec:Json",
        "msgpack": _HOME + "msgpack_codec:MessagePack",
        "string": _HOME + "texts:String",
    },
    "penstock.codecs",
)


def about(name: str) -> About:
    """Penstock's own need no package. Raises RequestError for an unknown codec, or one that cannot be loaded."""
    return OWN[name] if name in OWN else REGISTRY.get(name).about


def names() -> tuple[str, ...]:
    """The names of all codecs, sorted."""
    return tuple(REGISTRY.names())


def codec(name: str) -> Codec:
    """Raises RequestError."""
    return REGISTRY.get(name)()
