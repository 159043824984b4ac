"""Engines behind one port, their buffers, and model bundles on disk."""
