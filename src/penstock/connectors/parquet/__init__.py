"""The connector type `parquet`: Parquet files."""
