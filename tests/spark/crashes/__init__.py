"""Worker and driver are killed in every window of an epoch; at the end every event has taken effect once."""
