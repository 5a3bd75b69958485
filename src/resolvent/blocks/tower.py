"""The tower: input, norm, blocks, final norm. A model without its head."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from resolvent.blocks.certified.spectral import Spectral
from resolvent.blocks.stack import Stack
from resolvent.layers.checks import check_lengths
from resolvent.runtime.transforms import is_recorded, is_transformed


class Tower(nn.Module):
    """Raw sequences to features (b, l, d), in two halves so that tokens can be perturbed as real numbers."""

    def __init__(
        self,
        entry: nn.Embedding | nn.Linear | Spectral,
        body: Stack,
        *,
        input_norm: nn.Module,
        final_norm: nn.Module,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.entry = entry
        self.input_norm = input_norm
        self.dropout = nn.Dropout(dropout)
        self.body = body
        body.quick = False
        self.final_norm = final_norm

    def embed(self, x: Tensor) -> Tensor:
        """Tokens (b, l) or channels (b, l, c) -> (b, l, d)."""
        self.check(x)
        return self.entry(x)

    def features(self, e: Tensor, state: Any = None, lengths: Tensor | None = None) -> tuple[Tensor, Any]:
        """Embedded sequences (b, l, d) -> features (b, l, d) and the state after them."""
        if lengths is not None:
            check_lengths("Model", lengths, e.shape[0], e.shape[1])
        h, state = self.body(self.dropout(self.input_norm(e, lengths)), state, lengths)
        return self.final_norm(h, lengths), state

    def step(self, x_t: Tensor, state: Any) -> tuple[Tensor, Any]:
        """One step: tokens (b,) or channels (b, c) -> features (b, d)."""
        h, state = self.body.step(self.dropout(self.input_norm(self.entry(x_t))), state)
        return self.final_norm(h), state

    def check(self, x: Tensor, axes: str = "batch, length") -> None:
        """Raise on input that the entry does not take; `axes` stand before the channels."""
        if not isinstance(x, Tensor):
            raise TypeError(f"Model: expected a tensor, got {type(x).__name__}; use torch.as_tensor(x).")
        own = getattr(self.entry, "weight", x)
        if x.device != own.device and not own.is_meta:  # there it stands where weights are fetched as they are needed
            raise ValueError(
                f"Model: expected x on {own.device} where the model is, got {x.device}; use x.to({str(own.device)!r})."
            )
        if isinstance(self.entry, nn.Embedding):
            self._check_tokens(x, self.entry.num_embeddings, axes)
        else:
            self._check_channels(x, self.entry.in_features, own.dtype, axes)

    def _check_tokens(self, x: Tensor, vocab: int, axes: str) -> None:
        if x.is_floating_point() or x.is_complex() or x.dtype == torch.bool:
            raise TypeError(
                f"Model: expected integer tokens, got {x.dtype}; convert with x.long(), or give real input a model "
                "with ChannelsConfig. To perturb embeddings use embed(x) and from_embedding(e)."
            )
        if x.dim() != len(axes.split()):
            raise ValueError(f"Model: expected tokens of shape ({axes}), got {tuple(x.shape)}.")
        if x.device.type == "cpu" and x.numel() and not (is_recorded(x) or is_transformed()):
            low, high = int(x.min()), int(x.max())
            if low < 0 or high >= vocab:
                raise ValueError(f"Model: tokens must lie in 0..{vocab - 1} (vocab={vocab}), got {low}..{high}.")

    def _check_channels(self, x: Tensor, channels: int, own: torch.dtype, axes: str) -> None:
        if x.dim() != len(axes.split()) + 1 or x.shape[-1] != channels:
            raise ValueError(
                f"Model: expected x of shape ({axes}, {channels}), got {tuple(x.shape)}; "
                "put the channels last, with x[..., None] for a single one."
            )
        if not x.is_floating_point():
            raise TypeError(f"Model: expected real input, got {x.dtype}; convert with x.to(torch.get_default_dtype()).")
        if own != x.dtype and (x.is_meta or not torch.is_autocast_enabled(x.device.type)):
            raise TypeError(
                f"Model: expected input of the model's own {own}, got {x.dtype}; convert with x.to({own}) "
                f"or model.to({x.dtype})."
            )
