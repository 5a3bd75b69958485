"""The GPU form: blocks fused into Triton kernels, channels first."""
