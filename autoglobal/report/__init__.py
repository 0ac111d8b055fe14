"""The report on a module: ``describe``."""
