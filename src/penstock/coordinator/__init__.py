"""The coordinator: epochs, cuts, merges and what follows from them. A pure state machine, its ledger, its service."""
