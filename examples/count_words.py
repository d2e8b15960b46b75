"""Counts words as lines arrive. Every epoch emits all counts; the last count of a word is the current one.

penstock run examples/count_words.py
penstock send FILE --source lines --stream FILE
"""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812  as everybody calls it

from penstock.spark import pipeline


@pipeline(mode="complete")
def count_words(lines: DataFrame) -> DataFrame:
    text = F.col("value").cast("string")
    words = lines.select(F.explode(F.split(F.lower(text), r"\W+")).alias("key"))
    return words.where("key != ''").groupBy("key").count()
