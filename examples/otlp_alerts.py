"""The pipeline of otlp_alerts.yaml: logs of errors, with the service that they come from."""

from pyspark.sql import DataFrame
from pyspark.sql.functions import col

ERROR = 17
"""The lowest severity of an error, as OpenTelemetry numbers them."""


def errors(telemetry: DataFrame) -> DataFrame:
    return telemetry.where((col("signal") == "log") & (col("severityNumber") >= ERROR)).select(
        col("event_time").alias("at"),
        col("resource.attributes.`service.name`").alias("service"),
        col("severityText").alias("level"),
        col("body").alias("message"),
        col("traceId").alias("trace"),
    )
