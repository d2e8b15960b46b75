"""NATS JetStream: a stream of the server is a source, a subject is a sink."""
