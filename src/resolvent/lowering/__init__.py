"""From a model to kernels: which modules are what we built, and the quick form that runs them."""
