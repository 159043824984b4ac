"""Engines behind one port, their buffers, and model bundles on disk."""

import os

# ONNX Runtime's official wheels report to their maker unless this is set before they are imported (see the Privacy.md
# that they carry). Nothing leaves this machine that its owner has not asked to send.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
