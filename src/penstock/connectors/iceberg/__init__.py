"""The connector type `iceberg`: Iceberg tables."""
