"""A pipeline with one of Spark's own sinks, and with dead letters of its source and of its function."""

import os
from dataclasses import replace
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql.streaming.readwriter import DataStreamWriter

from penstock import dead_letters
from penstock.spark import pipeline
from penstock.spark.codecs.codec import Branch


def share(row: dict[str, Any]) -> dict[str, Any]:
    return {"share": 12 // row["n"]}


@pipeline(max_rows_per_epoch=1)
def archiving(attic: DataFrame) -> DataStreamWriter:
    shares = dead_letters.apply(attic, share, "share int", per="row", keep=["message_id"])
    return shares.writeStream.format("parquet").option("path", os.environ["ARCHIVE"])


archiving = replace(archiving, decoding={"attic": (Branch("json", "n int"),)})
