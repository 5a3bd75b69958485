"""Which components of a model amplify a perturbation into an error."""
