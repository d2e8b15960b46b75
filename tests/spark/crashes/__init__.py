"""Worker and driver are killed in every window of an epoch's life; at the end every event has had its effect once."""
