"""Engines: what is asked of a model, over which wire, through which gate. Trusted side."""
