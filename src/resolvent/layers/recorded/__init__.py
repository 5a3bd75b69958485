"""A layer's forward and backward passes on a GPU as CUDA graphs, inside any module and training loop."""

from resolvent.layers.recorded.known import forget_own, forget_recordings
from resolvent.layers.recorded.operation import run
from resolvent.runtime.graph.cuda_graph import GRAPHS
from resolvent.runtime.graph.watched import without_recording

__all__ = ["GRAPHS", "forget_own", "forget_recordings", "run", "without_recording"]
