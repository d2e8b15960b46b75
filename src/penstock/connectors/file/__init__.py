"""The file sink: data files and a transaction log in a directory of its own."""
