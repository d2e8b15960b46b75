"""Files of a `file` connector: read once, followed while they grow, or appended to."""
