"""`penstock top`: a worker live in a terminal, with pages for its sources, pipelines, epochs and sinks.

    the worker's HTTP API ──Feed, in a thread──▶ Seen ──page──▶ lines ──▶ the screen

`pages` decides what a page shows, from the same status, sentences and facts as `penstock status` and the dashboard.
`screen` only draws lines and handles keys.
"""
