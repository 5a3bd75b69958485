"""`resolvent reduce`."""
