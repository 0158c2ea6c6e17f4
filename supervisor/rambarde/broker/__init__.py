"""Answers what a child asks: the audited heart. Trusted side.

Start at table.py (what may be asked when) and serve.py (the loop).
"""
