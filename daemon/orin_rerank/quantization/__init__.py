"""INT8 from measured activations: ranges, smoothing, sensitivity, and the gate that decides whether it is served."""
