"""How fast batches come, alone: it should be ten times what training takes, or the device waits.

python -m benchmarks.gpu.loader                          sizes of sequential MNIST and CIFAR-10, made-up pixels
python -m benchmarks.gpu.loader --task cifar10           a real task, from the data folder
python -m benchmarks.gpu.loader --device cuda --train    with the rate of standard training of an S4D model beside it
python -m benchmarks.gpu.loader --device cuda --elsewhere    also with the samples left in the host's memory
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable

import torch

import resolvent.data.loader as loader_module
from benchmarks.about import about, accelerator
from resolvent.attacks import Draws
from resolvent.data import CropFlip, Loader, Split, load_task
from resolvent.models import build_model
from resolvent.models.config import ChannelsConfig, ClassifierConfig, ModelConfig, ResidualConfig
from resolvent.models.layer_config import S4DConfig
from resolvent.training import standard
from resolvent.training.step.batch import Batch


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", help="a task's name; without it, made-up samples")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--seconds", type=float, default=2.0, help="how long each row is measured")
    parser.add_argument("--train", action="store_true", help="also train a model on the batches")
    parser.add_argument("--elsewhere", action="store_true", help="every row again, with the split not on the device")
    parser.add_argument("--json", help="write the rows to this file")
    options = parser.parse_args()
    rows: list[dict[str, object]] = []
    trained: dict[str, float] = {}
    for share in (loader_module.SHARE, 0.0) if options.elsewhere else (loader_module.SHARE,):
        loader_module.SHARE = share
        for name, split, augment in splits(options.task):
            rows.append(measured(name, split, augment, options, trained))
            print("  ".join(f"{key} {value}" for key, value in rows[-1].items()), flush=True)
            if options.json:
                written(options, rows)


def written(options: argparse.Namespace, rows: list[dict[str, object]]) -> None:
    """All rows so far, with what they were measured on."""
    head = about(accelerator(options.device)) | {"batch": options.batch}
    with open(options.json, "w", encoding="utf-8") as file:
        json.dump({**head, "rows": rows}, file, indent=1)
        file.write("\n")


def splits(task: str | None) -> list[tuple[str, Split, CropFlip | None]]:
    if task is not None:
        loaded = {packed: load_task(task, packed=packed) for packed in (False, True)}
        return [
            (f"{task}{', packed' if packed else ''}", value.train, value.augment) for packed, value in loaded.items()
        ]
    found: list[tuple[str, Split, CropFlip | None]] = []
    for name, length, channels in (("MNIST", 784, 1), ("CIFAR-10", 1024, 3)):
        packed = Split(
            torch.randint(0, 256, (20_000, length, channels), dtype=torch.uint8), torch.zeros(20_000).long(), None, 255
        )
        found += [(name, packed.unpack(), None), (f"{name}, packed", packed, None)]
    return [*found, ("CIFAR-10, packed, cropped and mirrored", packed, CropFlip())]


def measured(
    name: str, split: Split, augment: CropFlip | None, options: argparse.Namespace, trained: dict[str, float]
) -> dict[str, object]:
    """One row; training is measured once for each shape, with its first loader."""
    loader = Loader(split, options.batch, 0, device=options.device, augment=augment)
    rate = per_second(lambda step: loader.at(step), options)
    row: dict[str, object] = {"set": name, "resident": loader.resident, "samples/s": round(rate)}
    if options.train:
        shape = name.split(",")[0]
        trained[shape] = trained.get(shape) or per_second(trainer(loader), options)
        row |= {"training samples/s": round(trained[shape]), "ratio": round(rate / trained[shape], 1)}
    return row


def per_second(work: Callable[[int], object], options: argparse.Namespace) -> float:
    """Samples a second, after a warm-up, until the time is over."""
    cuda = options.device.startswith("cuda")
    step = 0
    for _ in range(3):
        work(step)
        step += 1
    if cuda:
        torch.cuda.synchronize()
    first, started = step, time.perf_counter()
    while time.perf_counter() - started < options.seconds:
        work(step)
        step += 1
        if cuda and step % 20 == 0:
            torch.cuda.synchronize()  # or the clock would count what was asked for, not what was done
    if cuda:
        torch.cuda.synchronize()
    return (step - first) * options.batch / (time.perf_counter() - started)


def trainer(loader: Loader) -> Callable[[int], object]:
    """One step of standard training: four S4D layers of width 128, as the published recipes have it, bf16 on a GPU."""
    channels = loader.at(0).x.shape[-1]
    config = ModelConfig(ChannelsConfig(channels), ResidualConfig(S4DConfig(64)), ClassifierConfig(10, "mean"), 128, 4)
    model = build_model(config).to(loader.device)
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)

    def step(number: int) -> None:
        samples = loader.at(number)
        optimiser.zero_grad(set_to_none=True)
        with torch.autocast(loader.device.type, torch.bfloat16, enabled=loader.device.type == "cuda"):
            loss = standard(model, Batch(samples.x, samples.y, None, Draws(0, samples.index)))
        loss.value.backward()
        optimiser.step()

    return step


if __name__ == "__main__":
    main()
