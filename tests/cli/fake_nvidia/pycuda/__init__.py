"""What the daemon imports of pycuda, for a machine that has no NVIDIA GPU; found by PYTHONPATH."""
