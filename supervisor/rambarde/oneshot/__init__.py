"""One-shot runs: progress on a terminal, JSON for scripts. Trusted side."""
