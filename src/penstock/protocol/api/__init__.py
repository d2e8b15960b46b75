"""The worker's HTTP API: what is asked and what is answered, defined once for the client and for the server.

Requests are structs that refuse fields they do not know; an older worker does not silently drop what a newer client
asks for. Replies are read leniently: what a newer worker adds is ignored.
"""
