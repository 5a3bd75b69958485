"""From raw values to model inputs: split, scale, gaps, bounds; learned on the training part, applied to new data."""
