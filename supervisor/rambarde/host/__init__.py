"""What this host offers and what stands in the workspace. Trusted side."""
