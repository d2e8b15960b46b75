"""The gateway: programs outside send streams here, over the connector protocol."""
