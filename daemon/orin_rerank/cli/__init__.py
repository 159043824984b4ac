"""The command line: `orin-rerank serve`, `rank`, `status`, `evaluate` and `export`."""
