"""`otlp`: receives OpenTelemetry's logs, metrics and traces."""
