"""The codecs by name: Penstock's own, and those of other packages by entry points."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING

from penstock.core.errors import RequestError
from penstock.core.plugins import Registry
from penstock.spark.codecs.api import Codec
from penstock.spark.codecs.codec import CODECS as OWN
from penstock.spark.codecs.codec import About, name_of, options_of

if TYPE_CHECKING:
    from pydantic import BaseModel

_HOME = "penstock.spark.codecs."

REGISTRY: Registry[Codec] = Registry(
    "codec",
    {
        "arrow": _HOME + "row_files:Arrow",
        "avro": _HOME + "avro_codec:Avro",
        "binary": _HOME + "texts:Binary",
        "cef": _HOME + "logs:Cef",
        "dogstatsd": _HOME + "metric_lines:DogStatsd",
        "gelf": _HOME + "logs:Gelf",
        "graphite": _HOME + "metric_lines:Graphite",
        "grok": _HOME + "patterns:Grok",
        "influx": _HOME + "influx:Influx",
        "json-lines": _HOME + "by_json:JsonLines",
        "logfmt": _HOME + "logfmt:Logfmt",
        "null": _HOME + "texts:Null",
        "parquet": _HOME + "row_files:Parquet",
        "protobuf": _HOME + "protobuf_codec:Protobuf",
        "regex": _HOME + "patterns:Regex",
        "statsd": _HOME + "metric_lines:Statsd",
        "syslog": _HOME + "logs:Syslog",
        "yaml": _HOME + "by_json:Yaml",
        "csv": _HOME + "csv_codec:Csv",
        "json": _HOME + "json_codec:Json",
        "msgpack": _HOME + "msgpack_codec:MessagePack",
        "string": _HOME + "texts:String",
    },
    "penstock.codecs",
)


def about(name: str) -> About:
    """Of a codec, with or without options. Penstock's own need no package. Raises RequestError for an unknown codec, or
    one that cannot be loaded.
    """
    name = name_of(name)
    return OWN[name] if name in OWN else REGISTRY.get(name).about


def names() -> tuple[str, ...]:
    """The names of all codecs, sorted."""
    return tuple(REGISTRY.names())


def codec(text: str) -> Codec:
    """With its options. Raises RequestError."""
    return REGISTRY.get(name_of(text))(checked_options(text))


def check(text: str) -> None:
    """Whether a codec can work with its options, as far as this machine shows it; nothing is contacted. Raises
    RequestError.
    """
    known = about(text)
    if not known.extra and not options_of(text):
        return
    options = checked_options(text)
    if find_spec("pyarrow") is not None:  # without it Spark is elsewhere
        REGISTRY.get(name_of(text))(options).check()


def checked_options(text: str) -> BaseModel | None:
    """The options of a codec; None if it has none. Raises RequestError for an unknown codec, and invalid options."""
    model, given = about(text).model(), options_of(text)
    if model is None:
        if given:
            raise RequestError(f"the codec {name_of(text)} has no options", "Leave codec_config out.")
        return None
    from pydantic import ValidationError  # here: most codecs have no options

    try:
        return model.model_validate(given)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"])) or "codec_config"
        hint = "See docs/codecs.md for its options."
        raise RequestError(f"codec {name_of(text)}: {where}: {first['msg']}", hint) from None
