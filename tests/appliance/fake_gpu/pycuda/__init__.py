"""Stands for pycuda on a machine that has no GPU: a GPU can be opened, and no more."""
