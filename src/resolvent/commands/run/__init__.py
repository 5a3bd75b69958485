"""`resolvent run`: recipes, and training on a user's own data."""
