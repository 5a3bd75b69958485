"""From raw values to what a model reads: split, scale, gaps, bounds; learned in training, applied to new data."""
