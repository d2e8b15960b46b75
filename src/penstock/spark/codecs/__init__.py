"""Codecs: how a connector's bytes become columns in Spark, and how rows become bytes again.

`names()` and `CODECS` list them, and need no Spark.
"""

from penstock.spark.codecs.codec import CODECS, About, names

__all__ = ["CODECS", "About", "names"]
