"""`penstock top`: a worker live in a terminal, with pages for its sources, pipelines, epochs and sinks.

    the worker's HTTP API ──Feed, in a thread──▶ Seen ──page──▶ lines ──▶ the screen

What a page says is decided in `pages`, from the same status, sentences and facts that `penstock status` and the
dashboard show; `screen` only draws lines and follows keys.
"""
