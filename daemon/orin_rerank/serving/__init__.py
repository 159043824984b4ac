"""The daemon: gRPC services, admission and the scheduler that keeps the engine fed."""
