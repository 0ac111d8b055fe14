"""The conversion of a value: plan, apply, record."""
