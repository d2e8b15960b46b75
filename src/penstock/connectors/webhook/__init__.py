"""Webhooks: `webhook-server` receives deliveries with signatures, `webhook-client` sends them."""
