"""The sink: `df.writeStream.format("penstock")`. Executors stage rows, the driver merges each epoch once."""
