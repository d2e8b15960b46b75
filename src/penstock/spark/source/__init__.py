"""The source: `spark.readStream.format("penstock")`, and `spark.read` for the events stored now."""
