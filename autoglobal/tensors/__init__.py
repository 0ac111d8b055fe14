"""Local tensors that become global tensors, in one batch and one agreement."""
