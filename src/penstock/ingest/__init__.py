"""How events enter the worker: one source log, with two fronts.

    programs, over the connector protocol   `sessions`   ─┐
                                                          ├─▶ `source_log` ─▶ the segment store
    connectors' `out` ports                 `out_ports`  ─┘

Data flow to the right; acknowledgements return through `completion` to the owner of the stream (`owners`).
"""
