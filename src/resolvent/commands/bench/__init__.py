"""`resolvent bench`."""
