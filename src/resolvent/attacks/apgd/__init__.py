"""APGD: gradient ascent that halves its step size when it stalls, with restarts and targets."""
