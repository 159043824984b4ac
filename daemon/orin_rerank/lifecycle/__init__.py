"""How a model comes to serve: export, loading, self-test."""
