"""What the daemon tells about itself: its journal and its counters."""
