"""What is asked for: sbp, placement and rules, and the arithmetic of components."""
