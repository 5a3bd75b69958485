"""The CPU form: a few sequences at a time run through all blocks, compiled by numba."""
