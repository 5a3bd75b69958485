"""`resolvent attack`."""
