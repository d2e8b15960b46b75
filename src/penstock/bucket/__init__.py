"""Object stores with conditional writes: what the journal, checkpoints and leases need of one."""
