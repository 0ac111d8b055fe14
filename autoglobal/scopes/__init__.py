"""Which scope is in force, and what it does with an assignment."""
