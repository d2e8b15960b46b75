"""MQTT: subscriptions are a source, a topic is a sink."""
