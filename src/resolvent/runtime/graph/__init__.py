"""CUDA graphs: recording work, and contexts that forbid it."""
