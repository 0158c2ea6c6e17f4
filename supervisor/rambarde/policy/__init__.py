"""Rights as data: load, narrow, decide, explain, and compile into plans. Trusted side."""
