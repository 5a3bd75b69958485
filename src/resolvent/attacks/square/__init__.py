"""Square: a random search by windows that uses outputs alone."""
