"""Causal filters: convolution by FFT, by Toeplitz products, in blocks with a state between them."""
