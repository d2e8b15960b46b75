"""What connectors with a socket share: addresses, TLS, a connection that reads only when it is asked to."""
