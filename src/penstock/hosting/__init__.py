"""Connectors at work in a worker: their streams into the store, their events out of it, and what is deployed."""
