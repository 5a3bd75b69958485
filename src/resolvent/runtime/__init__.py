"""The base of all kernels: backends and their choice, threads, memory, vector maths, the chip."""
