"""Access control: principals and their roles, and a worker's access file, which lists them."""
