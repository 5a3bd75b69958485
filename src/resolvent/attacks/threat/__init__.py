"""What the attacker may do: a norm, a size, a valid range, a mask."""
