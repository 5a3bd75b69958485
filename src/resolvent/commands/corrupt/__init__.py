"""`resolvent corrupt`."""
