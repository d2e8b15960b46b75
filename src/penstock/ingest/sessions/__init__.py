"""Programs on the connector protocol: a session per connection, from frames to the source log and back."""
