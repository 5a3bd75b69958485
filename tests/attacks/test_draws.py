"""Random numbers by address: the known hash, good statistics, and no trace of the batch around a sample."""

from __future__ import annotations

import pytest
import torch

from resolvent.attacks.draws import Draws, _mix, _scramble, _to_int64

IDS = torch.tensor([3, 0, 12345678901, 7])


def splitmix64(state: int, count: int) -> list[int]:
    """The generator as published: add the golden ratio, then mix; in Python integers."""
    out = []
    for _ in range(count):
        state = (state + 0x9E3779B97F4A7C15) & (2**64 - 1)
        z = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & (2**64 - 1)
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & (2**64 - 1)
        out.append(z ^ (z >> 31))
    return out


def test_the_hash_is_splitmix64() -> None:
    # First outputs of the reference generator from seed 1234567, as listed in its public test vectors.
    known = [6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431]
    assert splitmix64(1234567, 4) == known
    states = [(1234567 + (i + 1) * 0x9E3779B97F4A7C15) % 2**64 for i in range(4)]
    mixed = _mix(torch.tensor([_to_int64(s) for s in states]))
    assert [int(m) % 2**64 for m in mixed] == known
    assert _scramble(1234567) == known[0]


def test_a_sample_keeps_its_numbers_in_any_batch() -> None:
    whole = Draws(5, IDS).fold("pgd").fold(2)
    alone = Draws(5, IDS[2:3]).fold("pgd").fold(2)
    assert torch.equal(whole.uniform(1, 4, (3, 2))[2:3], alone.uniform(1, 4, (3, 2)))
    assert torch.equal(whole.select(torch.tensor([2])).normal(0, 0, (5,)), alone.normal(0, 0, (5,)))
    assert torch.equal(whole.permutation(9, 0, 1)[2:3], alone.permutation(9, 0, 1))
    keep = torch.tensor([True, False, True, False])
    assert torch.equal(whole.select(keep).bits(0, 0, (4,)), whole.bits(0, 0, (4,))[keep])
    keys = torch.tensor([4, 5, 6, 7])
    assert torch.equal(whole.fold(keys).bits(0, 0)[1], whole.select(torch.tensor([1])).fold(keys[1:2]).bits(0, 0)[0])


def test_every_part_of_the_address_matters() -> None:
    base = Draws(0, IDS)
    others = [
        Draws(1, IDS).bits(0, 0, (8,)),
        Draws(0, IDS + 1).bits(0, 0, (8,)),
        base.bits(1, 0, (8,)),
        base.bits(0, 1, (8,)),
        base.fold("a").bits(0, 0, (8,)),
        base.fold(0).bits(0, 0, (8,)),
        base.fold(torch.zeros(4)).bits(0, 0, (8,)),
    ]
    for other in others:
        assert not (other == base.bits(0, 0, (8,))).any()


def test_statistics() -> None:
    draws = Draws(0, torch.arange(2000))
    u = draws.uniform(0, 0, (500,), torch.float64)  # 10^6 numbers
    assert u.min() >= 0
    assert u.max() < 1
    # Five standard errors of mean and variance over 10^6 numbers.
    assert abs(u.mean() - 1 / 2) < 5 * (1 / 12) ** 0.5 / 1000
    assert abs(u.var() - 1 / 12) < 5 * (1 / 180) ** 0.5 / 1000
    z = draws.normal(1, 0, (500,), torch.float64)
    assert abs(z.mean()) < 5 / 1000
    assert abs(z.var() - 1) < 5 * 2**0.5 / 1000
    neighbours = torch.corrcoef(torch.stack([u[:-1, 0], u[1:, 0], u[:-1, 1]]))
    assert (neighbours - torch.eye(3)).abs().max() < 5 / 2000**0.5
    dice = draws.integers(0, 6, 2, 0, (500,)).flatten().bincount(minlength=6) / 1e6
    assert (dice - 1 / 6).abs().max() < 5 * (5 / 36) ** 0.5 / 1000
    assert abs(draws.sign(3, 0, (500,)).mean()) < 5 / 1000


def test_integers_take_bounds_per_sample() -> None:
    high = torch.tensor([1, 2, 3, 1000])
    values = Draws(0, IDS).integers(0, high[:, None], 0, 0, (300,))
    assert values.dtype == torch.int64
    assert (values >= 0).all()
    assert (values < high[:, None]).all()
    assert values[2].unique().tolist() == [0, 1, 2]
    assert (Draws(0, IDS).integers(-5, -4, 0, 0) == -5).all()


def test_permutations_hold_every_number_once() -> None:
    order = Draws(0, torch.arange(50)).permutation(7, 0, 0)
    assert torch.equal(order.sort(1).values, torch.arange(7).expand(50, 7))
    assert order.unique(dim=0).shape[0] > 40


def test_float32_never_rounds_up_to_one() -> None:
    top = torch.tensor([-1])  # all bits set
    assert float((((top >> 40) & ((1 << 24) - 1)).float() * 2.0**-24)[0]) < 1


@pytest.mark.parametrize(("seed", "index"), [("0", IDS), (True, IDS), (0, IDS.float()), (0, IDS[None]), (0, [1, 2])])
def test_wrong_types_are_refused(seed: object, index: object) -> None:
    with pytest.raises(TypeError, match="Draws"):
        Draws(seed, index)  # type: ignore[arg-type]


def test_empty() -> None:
    assert Draws(0, torch.arange(0)).uniform(0, 0, (3,)).shape == (0, 3)
    assert Draws(0, torch.arange(2)).uniform(0, 0, (0,)).shape == (2, 0)
