"""Export of runs to other tools: metrics.jsonl and record.json to TensorBoard or Weights & Biases."""

from resolvent.report.log.follow import Follower
from resolvent.report.log.tensorboard_log import TensorBoardLog
from resolvent.report.log.tracked import Tracked, read_tracked
from resolvent.report.log.wandb_log import WandbLog

__all__ = ["Follower", "TensorBoardLog", "Tracked", "WandbLog", "read_tracked"]
