"""Where parameters start: spectra of state matrices, rings of eigenvalues, time steps."""

from resolvent.init import ring, spectra, timestep

__all__ = ["ring", "spectra", "timestep"]
