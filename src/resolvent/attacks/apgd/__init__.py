"""APGD: a step size that halves where the search stalls, with restarts and targets."""
