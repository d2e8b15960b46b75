"""Sinks by their URLs: which kinds there are, and what their options mean."""
