"""The ONNX graphs, written straight from a checkpoint."""
