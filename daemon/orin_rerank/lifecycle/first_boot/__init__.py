"""First boot: from a board with a bundle to one that serves, step by step, whatever interrupts it.

::

    board -> memory -> power mode -> clocks -> GPU -> calibrate -> build INT8 (with its gate) -> build full precision
          -> load (warm up, tune, self-test) -> serve

`machine` goes through the steps: `looking` are those that change nothing, `making` those that take minutes to hours,
`loading` is the last. `journal` keeps what was begun and what came of it, `backoff` decides when what failed is tried
again, `progress` and `told` say how it gets on.
"""
