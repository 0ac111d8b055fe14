"""The benchmarks: each file with a ``find`` is a command of ``python -m benchmarks``."""
