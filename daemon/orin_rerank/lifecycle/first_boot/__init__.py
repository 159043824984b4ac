"""First boot: from a board with a bundle to one that serves, step by step, whatever interrupts it.

::

    board -> memory -> power mode -> clocks -> GPU -> calibrate -> build INT8 (with its gate) -> build full precision
          -> load (warm up, tune, self-test) -> serve

`machine` goes through the steps, `steps` says what each needs and does, `journal` keeps what was begun and what came of
it, `backoff` decides when what failed is tried again.
"""
