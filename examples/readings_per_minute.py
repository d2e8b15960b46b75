"""The mean reading of each sensor per minute, with Spark's `window`. A minute closes when all sensors have passed it,
so a sensor that is an hour behind the others loses nothing.

penstock run examples/readings_per_minute.py
python examples/random_sensor.py
"""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812  as everybody calls it

import penstock
from penstock.spark import pipeline


@pipeline
def readings_per_minute(sensors: DataFrame) -> DataFrame:
    celsius = F.get_json_object(F.col("value").cast("string"), "$.celsius").try_cast("double")
    minutes = penstock.watermarked(sensors).groupBy(F.window("event_time", "1 minute"), "stream")
    means = minutes.agg(F.round(F.avg(celsius), 2).alias("celsius"))
    return means.select("stream", F.window_time("window").alias("event_time"), "celsius")
