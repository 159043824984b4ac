"""The command line: `orin-rerank serve`, `rank`, `status`, `evaluate`, `calibrate`, `build`, `engines` and `export`."""
