"""The same work done by other libraries, each a program for a Python that has that library."""
