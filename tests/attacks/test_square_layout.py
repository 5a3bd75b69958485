"""Windows: inside the input, of the scheduled area, anywhere with equal chance, off the padding; bumps by a loop."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from helpers import assert_close
from resolvent.attacks import Draws
from resolvent.attacks.square.attack import Square
from resolvent.attacks.square.bump import bumps
from resolvent.attacks.square.deck import Deck
from resolvent.attacks.square.layout import Image, Layout, Sequence, layout_of

CPU = torch.device("cpu")
LAYOUTS = [
    Image(3, 8, 8, CPU),
    Image(1, 3, 17, CPU),
    Image(2, 9, 1, CPU),
    Sequence(20, 3, CPU),
    Sequence(1, 1, CPU),
    Sequence(7, 40, CPU),
]


def size(layout: Layout) -> int:
    return layout.c * layout.h * layout.w if isinstance(layout, Image) else layout.l * layout.d


def dealt(deck: Deck, query: int) -> Tensor:
    """The numbers of every sample for one query: (b, width)."""
    deck.end(query)
    sample = torch.arange(len(deck.draws))
    return deck.deal(sample, torch.full_like(sample, query))


def window(layout: Layout, share: float, query: int = 1, b: int = 50, least: int = 1) -> Tensor:
    deck = Deck(Draws(0, torch.arange(b)), layout.width)
    return layout.window(layout.extent(share, least), dealt(deck, query))


@pytest.mark.parametrize("layout", LAYOUTS, ids=repr)
@pytest.mark.parametrize("share", [1.0, 0.8, 0.1, 0.01, 1e-4])
def test_windows_lie_inside_and_do_not_overlap_themselves(layout: Layout, share: float) -> None:
    at = window(layout, share).flatten(1)
    assert int(at.min()) >= 0
    assert int(at.max()) < size(layout)
    assert all(len(set(row)) == len(row) for row in at.tolist())


@pytest.mark.parametrize("layout", LAYOUTS, ids=repr)
def test_area_follows_the_share(layout: Layout) -> None:
    for share in (1.0, 0.5, 0.1):
        area, wanted = window(layout, share).flatten(1).shape[1], share * size(layout)
        least = layout.c if isinstance(layout, Image) else 1
        assert abs(area - wanted) <= max(0.45 * wanted, least)  # 2.5 rows become 3: 44 % more area


def test_every_place_is_reached_alike() -> None:
    """Corners too: a window of one pixel visits each of the 12 places equally often."""
    for layout in (Image(1, 3, 4, CPU), Sequence(12, 1, CPU)):
        deck = Deck(Draws(0, torch.arange(200)), layout.width)
        at = torch.cat([layout.window(layout.extent(1e-6, 1), dealt(deck, query)) for query in range(60)])
        counts = torch.bincount(at.flatten(), minlength=12)
        assert counts.min() > 850
        assert counts.max() < 1150  # mean 1000, deviation 30


def test_upstream_windows_stay_off_the_last_row_and_column() -> None:
    at = window(Image(1, 5, 5, CPU, last=0), 1e-6, b=2000).flatten()
    assert int((at // 5).max()) == 3
    assert int((at % 5).max()) == 3


def test_segments_are_contiguous_and_share_their_channels() -> None:
    layout = Sequence(30, 8, CPU)
    u = dealt(Deck(Draws(3, torch.arange(20)), layout.width), 2)
    extent = layout.extent(0.1, 1)
    first, second = layout.window(extent, u), layout.window(extent, u, second=True)
    times = first // 8
    assert bool((times.diff(dim=2) == 1).all())
    assert torch.equal(first % 8, second % 8)
    assert not torch.equal(first, second)
    assert first.shape[1:] == extent


def test_segments_avoid_padding() -> None:
    lengths = torch.tensor([3, 9, 20, 1])
    inside = torch.arange(20) < lengths[:, None]
    layout = layout_of(torch.zeros(4, 20, 2), inside[:, :, None].expand(4, 20, 2))
    deck = Deck(Draws(0, torch.arange(4)), layout.width)
    for query in range(200):
        times = layout.window(layout.extent(0.01, 1), dealt(deck, query)).flatten(1) // 2
        assert bool((times < lengths[:, None]).all())


def test_numbers_hang_on_sample_and_query_alone() -> None:
    draws = Draws(5, torch.arange(9))
    deck = Deck(draws, 11)
    later = Deck(draws, 11)
    assert torch.equal(dealt(deck, 70), dealt(later, 70))
    rows = torch.tensor([8, 2])
    assert torch.equal(dealt(deck.select(rows), 70), dealt(Deck(draws.select(rows), 11), 70))
    assert not torch.equal(dealt(deck, 70), dealt(deck, 71))


def test_schedule_is_the_published_one() -> None:
    """Halved after 10, 50, 200, 500, 1000, 2000, 4000, 6000 and 8000 of 10,000 queries; rescaled to 5000."""
    attack = Square(n_queries=10_000)
    edges = [10, 50, 200, 500, 1000, 2000, 4000, 6000, 8000]
    for i, edge in enumerate(edges):
        assert attack.share(edge) == 0.8 / 2**i
        assert attack.share(edge + 1) == 0.8 / 2 ** (i + 1)
    assert Square(n_queries=5000).share(500) == attack.share(1000)
    assert Square(n_queries=5000, stretch=False).share(1000) == attack.share(1000)
    assert attack.share(0) == 0.8
    assert attack.share(9999) == 0.8 / 512


def slow_pyramid(rows: int, columns: int, power: int) -> Tensor:
    out = torch.zeros(rows, columns, dtype=torch.float64)
    r, c = rows // 2, columns // 2
    for j in range(max(r, c) + 1):
        out[max(r - j, 0) : r + j + 1, max(c - j, 0) : c + j + 1] += 1 / (j + 1) ** power
    return out


@pytest.mark.parametrize(("norm", "power", "order"), [("l2", 2, 2), ("l1", 4, 1)])
@pytest.mark.parametrize("side", [1, 2, 3, 5, 8])
def test_bumps(norm: str, power: int, order: int, side: int) -> None:
    half = side // 2
    want = torch.cat([slow_pyramid(half, side, power), -slow_pyramid(side - half, side, power)])
    want = want / torch.linalg.vector_norm(want, order)
    upright, turned = bumps((side, side), norm, CPU).view(2, side, side)
    assert_close(upright, want.float())
    assert_close(turned, want.T.float())
    line = bumps((side,), norm, CPU)
    assert_close(torch.linalg.vector_norm(line, order, dim=1), torch.ones(2))
    assert_close(line[0], -line[1])


@pytest.mark.parametrize("layout", LAYOUTS, ids=repr)
def test_first_points_cover_the_input(layout: Layout) -> None:
    assert layout.stripes().shape == (size(layout),)
    drawn, tile = layout.tiles("l2")
    assert drawn.shape == (2, size(layout))
    assert tile.shape == (size(layout),)
    assert float((drawn != 0).float().mean()) > 0.3
    count = int(tile.max()) + 1
    assert math.isclose(float(drawn[0].square().sum()), count, rel_tol=1e-5)  # one bump of unit norm in each tile
