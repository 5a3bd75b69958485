"""A layer's whole pass on a GPU as one CUDA graph each way, in anybody's module and loop."""

from resolvent.layers.recorded.operation import forget, replay, without_recording

__all__ = ["forget", "replay", "without_recording"]
