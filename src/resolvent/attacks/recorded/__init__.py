"""CUDA graphs for attacks: a model's passes, and the attack's own steps around them."""
