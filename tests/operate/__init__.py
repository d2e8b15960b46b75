"""`script/test --campaign operate`: restores from copies, full disks, and reads that fail, in all combinations."""
