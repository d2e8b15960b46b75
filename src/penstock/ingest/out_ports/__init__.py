"""Connectors' `out` ports: what a connector reads goes through interceptors into its source log."""
