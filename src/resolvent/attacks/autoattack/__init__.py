"""AutoAttack: a list of attacks in rounds, what is left after each, and everything that casts doubt."""
