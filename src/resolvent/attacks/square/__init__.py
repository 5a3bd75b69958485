"""Square: a search by random windows that sees outputs alone."""
