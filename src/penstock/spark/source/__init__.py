"""The source: `spark.readStream.format("penstock")`, and `spark.read` for what is stored now."""
