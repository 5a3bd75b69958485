"""What every kernel stands on: backends and their choice, threads, memory, vector maths, the chip."""
