"""Access control: principals and their roles, and the small file of a worker that lists them."""
