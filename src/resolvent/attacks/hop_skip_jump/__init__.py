"""An attack on a model that tells its answer and nothing else."""
