"""What happens to signals without an enemy: noise, gaps, drifts, other clocks; five severities of each."""
