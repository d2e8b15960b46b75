"""The pipeline of mqtt_sensors.yaml: the mean of each sensor per ten seconds."""

from pyspark.sql import DataFrame

from penstock import windows


def per_sensor(readings: DataFrame) -> DataFrame:
    return windows.aggregate(
        readings,
        windows.tumbling("10 seconds"),
        keys=["sensor"],
        readings=windows.count(),
        celsius=windows.avg("celsius"),
    )
