"""`resolvent check`."""
