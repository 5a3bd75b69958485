"""Natural corruptions of signals: noise, gaps, drift, changed sampling; five severities of each."""
