"""Which components increase the distance between clean and perturbed features, and which decrease it.

Figures 3 and 4 of the study of deep SSMs under adversarial training: with d the mean over samples of a distance between
clean and perturbed features (`feature_mse`, `feature_kl`), a component changes it by

    100 (d after - d before) / d before   percent,

for each layer, then averaged over layers. Samples are averaged before dividing, so that a sample hardly changed by the
attack does not dominate the result. (The text also mentions d / ||f||; the figures' captions, followed here, do
not.)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from resolvent.analysis.attribution.change import Attribution, Change, Changes, Component
from resolvent.analysis.attribution.feature_distance import feature_kl, feature_mse, rounding
from resolvent.analysis.attribution.trace import Calls, record_trace
from resolvent.attacks.victim import Victim
from resolvent.usage.numbers import check_count

Part = str | tuple[str, str]
"""A module by its dotted name: from its input to its output. A pair: from the input of one to the output of another."""
Chosen = Iterable[Part] | Callable[[str, nn.Module], bool]
Spans = dict[str, list[tuple[str, str]]]
Sums = dict[tuple[str, str, int], Tensor]
"""(start, end, number of the call) -> both distances before, after, and by rounding; rows: (7,) on the CPU."""


def attribution(
    model: nn.Module,
    x: Tensor,
    x_adv: Tensor,
    components: Mapping[str, Chosen],
    *,
    lengths: Tensor | None = None,
    call: Callable[..., Any] | None = None,
    batch_size: int = 256,
) -> Attribution:
    """Relative change of MSE and KL across each component, on samples x and their perturbed x_adv, both (n, l, ...).

    components   label -> module names, pairs of names (from the input of the first to the output of the second), or
                 a predicate on (name, module); for models of this library `resolvent.models.components_of(model)`
    lengths      (n,): passed to the model; padding is excluded from both distances
    call         what to call instead of the model, with x or with (x, lengths): `model.from_embedding` for tokens

    A component's input is its first argument, its output the first of its results, both (b, l, d). A module called
    several times counts as several layers. The model runs in evaluation mode without gradients; modes are restored
    and hooks removed, also after errors. If input and output differ in width, MSE compares squared norms.

    Examples:
        >>> model = rv.build_model(rv.ModelConfig(d_model=4, layers=1)).eval()
        >>> x = torch.rand(3, 20, 1)
        >>> found = rv.analysis.attribution(model, x, x + 0.1, rv.models.components_of(model))
        >>> found.samples
        3
    """
    _check(model, x, x_adv, lengths, batch_size)
    spans = _spans(model, components)
    run = model if call is None else call
    device = next(model.parameters(), x).device
    sums: Sums = {}
    pairs = dict.fromkeys(pair for chosen in spans.values() for pair in chosen)
    starts, ends = (dict.fromkeys(pair[side] for pair in pairs) for side in (0, 1))
    with torch.no_grad(), Victim(model).attacked(), record_trace(model, starts, ends) as trace:
        for rows in torch.arange(len(x)).split(batch_size):
            valid = None if lengths is None else lengths[rows.to(lengths.device)].to(device)
            taken = []
            for inputs in (x, x_adv):
                part = inputs[rows.to(inputs.device)].to(device)
                run(part) if valid is None else run(part, valid)
                taken.append(trace.take())
            for pair in pairs:
                _add(sums, pair, taken[0], taken[1], valid)
    return Attribution(tuple(_component(label, chosen, sums) for label, chosen in spans.items()), len(x))


def _add(
    sums: Sums, pair: tuple[str, str], clean: tuple[Calls, Calls], adv: tuple[Calls, Calls], lengths: Tensor | None
) -> None:
    sides = [taken[side].get(pair[side], []) for side in (0, 1) for taken in (clean, adv)]
    counts = [len(side) for side in sides]
    if not counts[0] or len(set(counts)) > 1:
        raise ValueError(
            f"attribution: expected {_where(*pair)} to be called, as often at its start as at its end and on both "
            f"inputs, got {counts[::2]} times on x and {counts[1::2]} on x_adv; name modules that forward calls."
        )
    for k, features in enumerate(zip(*sides, strict=True)):
        found = _distances(_where(*pair), features, lengths)
        sums[*pair, k] = sums[*pair, k] + found if (*pair, k) in sums else found


def _distances(where: str, features: tuple[Tensor, ...], lengths: Tensor | None) -> Tensor:
    f, f_adv, g, g_adv = features
    try:
        valid, valid_after = _expand_lengths(f, lengths), _expand_lengths(g, lengths)
        rows = [
            *(feature_mse(f, f_adv, valid), feature_kl(f, f_adv, valid)),
            *(feature_mse(g, g_adv, valid_after), feature_kl(g, g_adv, valid_after)),
            *rounding(f, f_adv, valid),
        ]
    except (TypeError, ValueError) as wrong:
        raise type(wrong)(f"attribution: at {where}: {wrong}") from wrong
    return torch.stack([row.sum() for row in rows] + [rows[0].new_tensor(len(f))]).cpu()


def _expand_lengths(f: Tensor, lengths: Tensor | None) -> Tensor | None:
    """Lengths for features whose batch has several sequences per model input (heads, pairs)."""
    if lengths is None:
        return None
    flat = lengths.flatten()
    return flat.repeat_interleave(len(f) // len(flat)) if len(f) % len(flat) == 0 else flat


def _component(label: str, chosen: list[tuple[str, str]], sums: Sums) -> Component:
    found = [(_where(*key), sums[key]) for pair in chosen for key in _calls(pair, sums)]
    mse, kl = (
        Changes(tuple(Change.of(where, *(total[[i, i + 2, i + 4]] / total[-1]).tolist()) for where, total in found))
        for i in (0, 1)
    )
    return Component(label, mse, kl)


def _calls(pair: tuple[str, str], sums: Sums) -> list[tuple[str, str, int]]:
    return sorted(key for key in sums if key[:2] == pair)


def _where(start: str, end: str, call: int = 0) -> str:
    name = start if start == end else f"{start} -> {end}"
    return f"{name} (call {call + 1})" if call else name


def _spans(model: nn.Module, components: Mapping[str, Chosen]) -> Spans:
    """Every component as pairs of names that exist in the model."""
    if not isinstance(components, Mapping) or not components:
        raise ValueError("attribution: expected components as {label: module names or a predicate}, at least one.")
    return {label: _choose(model, label, chosen) for label, chosen in components.items()}


def _choose(model: nn.Module, label: str, chosen: Chosen) -> list[tuple[str, str]]:
    modules = dict(model.named_modules())
    if isinstance(chosen, str):
        raise TypeError(f"attribution: component {label!r} must be a list of module names, got {chosen!r}; use [...].")
    parts = [n for n, m in modules.items() if chosen(n, m)] if callable(chosen) else list(chosen)
    pairs = [(part, part) if isinstance(part, str) else part for part in parts]
    if not pairs:
        raise ValueError(f"attribution: component {label!r} matches no module; leave it out or name its modules.")
    missing = [name for pair in pairs for name in pair if name not in modules]
    if missing:
        raise ValueError(
            f"attribution: component {label!r} names {missing[0]!r}, which the model does not hold; "
            "see dict(model.named_modules())."
        )
    return list(dict.fromkeys((start, end) for start, end in pairs))


def _check(model: nn.Module, x: Tensor, x_adv: Tensor, lengths: Tensor | None, batch_size: int) -> None:
    if not isinstance(model, nn.Module):
        raise TypeError(f"attribution: expected an nn.Module, got {type(model).__name__}; hooks need its modules.")
    if not isinstance(x, Tensor) or not isinstance(x_adv, Tensor) or x.shape != x_adv.shape or not x.numel():
        got = [tuple(v.shape) if isinstance(v, Tensor) else type(v).__name__ for v in (x, x_adv)]
        raise ValueError(f"attribution: expected x and x_adv as tensors of one shape, not empty, got {got}.")
    check_count("attribution", 1, batch_size=batch_size)
    if lengths is not None and (not isinstance(lengths, Tensor) or lengths.shape[:1] != x.shape[:1]):
        given = tuple(lengths.shape) if isinstance(lengths, Tensor) else type(lengths).__name__
        raise ValueError(f"attribution: expected lengths as a tensor with {len(x)} rows, one for each x, got {given}.")
