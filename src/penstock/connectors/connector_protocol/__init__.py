"""The connector sink: any program that speaks the connector protocol in the sink role."""
