"""A layer's whole pass on a GPU as one CUDA graph each way, in anybody's module and loop."""

from resolvent.layers.recorded.known import forget_own, forget_recordings
from resolvent.layers.recorded.operation import run, without_recording
from resolvent.layers.recorded.recording import GRAPHS

__all__ = ["GRAPHS", "forget_own", "forget_recordings", "run", "without_recording"]
