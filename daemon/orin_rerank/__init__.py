"""orin-rerank: a multimodal reranking appliance for NVIDIA Jetson Orin."""

__version__ = "0.1.0"
