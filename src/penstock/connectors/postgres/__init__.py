"""The PostgreSQL sink: rows of a table, exactly once, without the server's prepared transactions."""
