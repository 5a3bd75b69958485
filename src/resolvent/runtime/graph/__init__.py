"""CUDA graphs: how work is recorded, and who around a call forbids it."""
