"""Generated images in [0, 1] and a small convolutional classifier trained on them for a few seconds."""

from __future__ import annotations

from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor, nn

CLASSES = 10


def images(n: int, seed: int, size: int = 12) -> tuple[Tensor, Tensor]:
    """Ten smooth patterns, each shifted, scaled and covered with noise: x (n, 1, size, size), y (n,)."""
    fixed = torch.Generator().manual_seed(7)
    patterns = F.interpolate(torch.randn(CLASSES, 1, 4, 4, generator=fixed), size=(size, size), mode="bicubic")
    generator = torch.Generator().manual_seed(seed)
    y = torch.randint(CLASSES, (n,), generator=generator)
    gain = 0.10 + 0.16 * torch.rand(n, 1, 1, 1, generator=generator)
    noise = 0.07 * torch.randn(n, 1, size, size, generator=generator)
    shift = int(torch.randint(-1, 2, (1,), generator=generator))
    return (0.5 + gain * patterns[y].roll(shift, -1) + noise).clamp(0, 1), y


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 16, 3, stride=2), nn.ReLU(), nn.Flatten()
        )
        self.head = nn.Linear(16 * 25, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x))


@cache
def trained(steps: int = 120) -> Net:
    """Trained on noisy copies, so that it is neither hopeless nor robust; the seed of the caller is not touched."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = Net()
        optimiser = torch.optim.Adam(net.parameters(), 3e-3)
        for i in range(steps):
            x, y = images(64, 1000 + i)
            loss = F.cross_entropy(net((x + 0.1 * torch.randn_like(x)).clamp(0, 1)), y)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
    return net.eval()
