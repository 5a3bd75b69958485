"""`resolvent verdicts`."""
