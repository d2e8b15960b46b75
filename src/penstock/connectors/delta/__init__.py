"""The connector type `delta`: Delta tables."""
