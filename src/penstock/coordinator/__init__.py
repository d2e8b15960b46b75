"""The coordinator decides epochs and cuts, merges their output, and releases what is complete. It consists of a pure
state machine, its ledger, and its service.
"""
