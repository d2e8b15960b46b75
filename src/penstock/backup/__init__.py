"""Backups of a worker's data directory, taken while it runs or after it has stopped, and their restoration."""
