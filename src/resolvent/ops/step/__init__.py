"""One time step of a layer in one compiled call."""
