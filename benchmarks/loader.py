"""How fast batches come, alone: it should be ten times what training takes, or the device waits.

python benchmarks/loader.py                          sizes of sequential MNIST and CIFAR-10, made-up pixels
python benchmarks/loader.py --task cifar10           a real task, from the data folder
python benchmarks/loader.py --device cuda --train    with the rate of standard training of an S4D model beside it
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable

import torch

from resolvent.data import CropFlip, Loader, Split, load_task


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", help="a task's name; without it, made-up samples")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--seconds", type=float, default=2.0, help="how long each row is measured")
    parser.add_argument("--train", action="store_true", help="also train a model on the batches")
    parser.add_argument("--json", help="write the rows to this file")
    options = parser.parse_args()
    rows = []
    for name, split, augment in splits(options.task):
        row = measured(name, split, augment, options)
        rows.append(row)
        print("  ".join(f"{key} {value}" for key, value in row.items()), flush=True)
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump({"device": options.device, "batch": options.batch, "rows": rows}, file, indent=1)


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


def measured(name: str, split: Split, augment: CropFlip | None, options: argparse.Namespace) -> dict[str, object]:
    loader = Loader(split, options.batch, 0, device=options.device, augment=augment)
    rate = per_second(lambda step: loader.at(step), options)
    row: dict[str, object] = {"set": name, "resident": loader.resident, "samples/s": round(rate)}
    if options.train:
        trained = per_second(trainer(loader), options)
        row |= {"training samples/s": round(trained), "ratio": round(rate / trained, 1)}
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
    """One step of standard training: four S4D layers of width 128, as the published recipes have it."""
    from resolvent.models import build_model
    from resolvent.models.config import ChannelsConfig, ClassifierConfig, ModelConfig, ResidualConfig
    from resolvent.models.layer_config import S4DConfig

    channels = loader.at(0).x.shape[-1]
    config = ModelConfig(ChannelsConfig(channels), ResidualConfig(S4DConfig(64)), ClassifierConfig(10, "mean"), 128, 4)
    model = build_model(config).to(loader.device)
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-3)

    def step(number: int) -> None:
        samples = loader.at(number)
        optimiser.zero_grad(set_to_none=True)
        torch.nn.functional.cross_entropy(model(samples.x), samples.y).backward()
        optimiser.step()

    return step


if __name__ == "__main__":
    main()
