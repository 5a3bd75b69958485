"""One training step: its batch, its loss, the attack inside of it, and its recording as a CUDA graph."""
