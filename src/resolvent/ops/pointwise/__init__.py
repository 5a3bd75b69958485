"""What acts on each step alone, or on a few neighbours: norms, gates, short convolutions."""
