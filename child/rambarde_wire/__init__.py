"""What crosses the boundary, for both sides: frames, orders, tool arguments. No I/O."""
