"""The CPU form: some sequences at a time go through all blocks, compiled by numba."""
