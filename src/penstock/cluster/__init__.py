"""Who owns what in a cluster: records on the object store, leases, and the decisions that rest on them."""
