"""AutoAttack: a sequence of attacks, the accuracy after each, and flags for doubtful results."""
