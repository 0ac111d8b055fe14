"""``nn.Module`` as a tree: what it registers, and the hook on its methods."""
