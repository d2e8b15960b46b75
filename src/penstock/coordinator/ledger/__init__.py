"""The machine's commands in a segment of the journal: written, replayed, snapshotted."""
