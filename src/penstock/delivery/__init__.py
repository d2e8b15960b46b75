"""Delivers the output of pipelines to the sinks bound to their ports, exactly once if the sink supports it."""
