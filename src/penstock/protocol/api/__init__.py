"""The messages of the worker's HTTP API, defined once for client and server.

Requests reject unknown fields, so that an older worker does not silently drop what a newer client asks for. Replies are
read leniently: fields that a newer worker adds are ignored.
"""
