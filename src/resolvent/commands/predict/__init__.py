"""`resolvent predict`."""
