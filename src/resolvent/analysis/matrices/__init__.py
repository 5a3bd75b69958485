"""Matrices: conditioning, pseudospectra, growth of powers."""
