"""A small evaluation in a process of its own, for the test that kills it: folder -> the result's numbers as JSON."""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path

import torch
from victims import BOX, Recurrent, labelled, sequences

from resolvent.attacks import APGD, targeted_dlr
from resolvent.attacks.autoattack.evaluate import EvaluationSettings, evaluate
from resolvent.attacks.square.attack import Square


def main(folder: str, out: str) -> None:
    torch.set_num_threads(1)
    model, x = Recurrent(), sequences(40)
    attacks = (APGD(steps=8), APGD(targeted_dlr, steps=8, targets=3), Square(n_queries=40))
    print("ready", flush=True)
    settings = EvaluationSettings(batch_size=4)
    evaluation = evaluate(model, (x, labelled(model, x)), BOX, attacks, settings=settings, folder=folder)
    bits = hashlib.sha256(evaluation.result.x_adv.numpy().tobytes()).hexdigest()
    Path(out).write_text(json.dumps({"x_adv": bits, **evaluation.to_dict()}))


if __name__ == "__main__":
    main(*sys.argv[1:])
