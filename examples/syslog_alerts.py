"""The pipeline of syslog_alerts.yaml: messages of severity 3 (error) and worse."""

from pyspark.sql import DataFrame


def errors(machines: DataFrame) -> DataFrame:
    return machines.where("severity <= 3").select("time", "host", "app", "severity", "message")
