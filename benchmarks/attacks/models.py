"""What the benchmarks of attacks are run on: small classifiers of images, trained here within half a minute.

cnn   a convolutional network: somebody else's module, of which nothing is known
s4    two S4 layers that read the image pixel by pixel
s5    two S5 layers, likewise
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from resolvent.attacks import PGD, Threat
from resolvent.models import build_model
from resolvent.models.config import ModelConfig, ResidualConfig
from resolvent.models.layer_config import LayerConfig, S4Config, S5Config


def images(n: int, seed: int, size: int = 15) -> tuple[Tensor, Tensor]:
    """Ten smooth patterns of random strength under noise: x (n, 1, size, size) in [0, 1], y (n,).

    The peer's Square for L2 tiles an image by fifths of its height: other sizes make it fail.
    """
    fixed = torch.Generator().manual_seed(7)
    patterns = F.interpolate(torch.randn(10, 1, 4, 4, generator=fixed), size=(size, size), mode="bicubic")
    generator = torch.Generator().manual_seed(seed)
    y = torch.randint(10, (n,), generator=generator)
    gain = 0.1 + 0.3 * torch.rand(n, 1, 1, 1, generator=generator)
    noise = 0.07 * torch.randn(n, 1, size, size, generator=generator)
    return (0.5 + gain * patterns[y] + noise).clamp(0, 1), y


def network(size: int = 15, width: int = 16) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, width, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(width, 2 * width, 3, stride=2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(2 * width * ((size - 1) // 2) ** 2, 10),
    )


class Pixels(nn.Module):
    """A sequence model as a classifier of images (b, 1, h, w), which is all that the peer takes."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.model(x.flatten(1)[:, :, None])  # (b, h w, 1)
        return logits


def sequential(layer: LayerConfig) -> nn.Module:
    block = ResidualConfig(layer, mixer="linear", activation="gelu")
    return Pixels(build_model(ModelConfig(block=block, d_model=24, layers=2, prenorm=False)))


@dataclass(frozen=True)
class Subject:
    """A model to attack: how it is made and trained, and the eps at which some of its samples stand."""

    make: Callable[[], nn.Module]
    eps: Mapping[str, float]
    steps: int
    rate: float = 0.01


SUBJECTS = {
    "cnn": Subject(network, {"linf": 0.13, "l2": 1.0}, 300, 3e-3),
    "s4": Subject(lambda: sequential(S4Config(16)), {"linf": 0.05, "l2": 0.5}, 120),
    "s5": Subject(lambda: sequential(S5Config(16)), {"linf": 0.05, "l2": 0.5}, 120),
}


def trained(make: Callable[[], nn.Module], threat: Threat | None, steps: int, rate: float, size: int = 15) -> nn.Module:
    """A small network trained on PGD examples, or on the samples themselves."""
    torch.manual_seed(0)
    net = make()
    optimiser = torch.optim.Adam(net.parameters(), rate)
    for i in range(steps):
        x, y = images(64, 1000 + i, size)
        if threat is not None:
            x = PGD(steps=4, keep="last")(net, x, y, threat).x_adv
        loss = F.cross_entropy(net(x), y)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    return net.eval()
