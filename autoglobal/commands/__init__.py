"""The commands of ``python -m autoglobal``; they run where OneFlow cannot be imported."""
