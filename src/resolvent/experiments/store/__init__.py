"""Storage of runs: folders with locks, object stores."""
