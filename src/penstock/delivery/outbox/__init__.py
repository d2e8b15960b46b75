"""The port `in` of a hosted connector: what pipelines put out leaves through it."""
