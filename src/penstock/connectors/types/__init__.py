"""The connectors that come with Penstock, one file each."""
