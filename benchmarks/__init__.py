"""Microbenchmarks of autoglobal: ``python -m benchmarks NAME``."""
