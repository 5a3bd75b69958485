"""Linear systems: transfer functions, norms, Gramians, realisations."""
