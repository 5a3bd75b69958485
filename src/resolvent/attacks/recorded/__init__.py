"""Work of an attack as CUDA graphs: a model's passes, and the attack's own steps around them."""
