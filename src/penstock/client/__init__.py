"""The SDK: what programs outside the worker use."""
