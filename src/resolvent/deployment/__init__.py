"""Export: a trained model as one file for other programs (torch's pt2, ONNX), whole sequences and single steps."""

from resolvent.deployment.write import Exported, export

__all__ = ["Exported", "export"]
