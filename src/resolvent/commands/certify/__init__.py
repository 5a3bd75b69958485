"""`resolvent certify`."""
