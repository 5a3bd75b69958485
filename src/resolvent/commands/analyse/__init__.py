"""`resolvent analyse`."""
