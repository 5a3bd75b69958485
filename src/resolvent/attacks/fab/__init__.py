"""FAB: the nearest point beyond the linearised boundary, step by step."""
