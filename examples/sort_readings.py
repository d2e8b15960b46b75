"""Sorts sensor readings into two outputs that commit together: valid readings, and invalid ones unchanged.

penstock run examples/sort_readings.py
python examples/random_sensor.py
"""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812  as everybody calls it

from penstock.spark import pipeline


@pipeline
def sort_readings(sensors: DataFrame) -> dict[str, DataFrame]:
    celsius = F.get_json_object(F.col("value").cast("string"), "$.celsius").try_cast("double")
    readings = sensors.withColumn("celsius", celsius)
    return {
        "good": readings.where("celsius is not null").select("stream", "event_time", "celsius"),
        "bad": readings.where("celsius is null").drop("celsius"),
    }
