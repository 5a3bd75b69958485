"""A model of random state-space systems, whose read-out is learned in closed form."""

from resolvent.models.reservoir.config import reservoir_config
from resolvent.models.reservoir.learn import learn_reservoir

__all__ = ["learn_reservoir", "reservoir_config"]
