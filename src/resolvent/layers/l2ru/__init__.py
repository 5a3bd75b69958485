"""L2RU: a recurrent unit with a prescribed L2 gain."""

from resolvent.layers.l2ru.layer import L2RU

__all__ = ["L2RU"]
