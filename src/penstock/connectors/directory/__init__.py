"""`directory`: new files of a directory or a bucket, each read once."""
