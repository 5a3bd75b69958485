"""One training step: its batch, loss and attack, and its recording as a CUDA graph."""
