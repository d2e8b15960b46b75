"""Topics of Kafka, as sources and as sinks."""
