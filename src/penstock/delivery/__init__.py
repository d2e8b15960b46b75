"""Delivery: what pipelines have put out reaches the sinks bound to their ports, once where the sink can."""
