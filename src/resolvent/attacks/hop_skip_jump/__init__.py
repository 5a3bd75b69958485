"""An attack on a model that returns only its predicted class."""
