"""Applications: what is written in YAML, checked, and as it is deployed."""
