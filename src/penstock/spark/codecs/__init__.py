"""Codecs: what bytes of a connector become in Spark, and how rows become bytes again.

`names()` and `CODECS` tell which there are, and need no Spark.
"""

from penstock.spark.codecs.codec import CODECS, About, names

__all__ = ["CODECS", "About", "names"]
