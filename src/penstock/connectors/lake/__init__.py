"""What the sinks of tables in files share: rows as Arrow columns, Parquet files, the rule for schemas, and the vote."""
