"""Twenty steps by as many processes as torchrun starts; the first one prints the losses.

torchrun --nproc-per-node 2 process_group_target.py FOLDER NORM
"""

from __future__ import annotations

import json
import os
import sys

import torch
import torch.distributed as dist

from resolvent.attacks import Threat
from resolvent.data import load_task
from resolvent.models import ChannelsConfig, ClassifierConfig, LRUConfig, ModelConfig, ResidualConfig, build_model
from resolvent.training import FitSettings, fit, trades


def losses(folder: str, norm: str) -> dict[str, object]:
    torch.manual_seed(int(os.environ.get("RANK", 0)))  # processes start apart: the first one's weights must count
    config = ModelConfig(
        ChannelsConfig(1), ResidualConfig(LRUConfig(8), mixer="linear"), ClassifierConfig(10, "last"), 8, 1, norm
    )
    model = build_model(config).double()
    task = load_task("digits").head(100)
    settings = FitSettings(epochs=5, batch_size=27, lr=1e-2, clip=1.0)
    history = fit(model, task, trades(Threat("linf", 0.05, (0.0, 1.0)), steps=3), settings, folder)
    return {"rows": [{k: v for k, v in row.items() if k != "seconds"} for row in history.rows]}


if __name__ == "__main__":
    torch.set_num_threads(1)
    if "RANK" in os.environ:
        dist.init_process_group("gloo")
    found = losses(sys.argv[1], sys.argv[2])
    if int(os.environ.get("RANK", 0)) == 0:
        print(json.dumps(found))
    if dist.is_initialized():
        dist.destroy_process_group()
