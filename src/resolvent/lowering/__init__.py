"""From a model to kernels: describes which modules are known, and the fast forms that run them."""
