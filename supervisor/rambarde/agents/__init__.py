"""One agent from brief to report, and the tree of them. Trusted side."""
