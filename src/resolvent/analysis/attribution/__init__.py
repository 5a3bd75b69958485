"""Which component of a model turns a perturbation into an error."""
