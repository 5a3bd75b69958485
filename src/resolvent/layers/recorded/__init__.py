"""A layer's whole pass on a GPU as one CUDA graph each way, in anybody's module and loop."""

from resolvent.layers.recorded.operation import forget, replay, without_recording
from resolvent.layers.recorded.recording import GRAPHS

__all__ = ["GRAPHS", "forget", "replay", "without_recording"]
