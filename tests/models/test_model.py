"""Whole models: heads, padding, streams, embeddings, freezing, compiling."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.func import functional_call, grad, vmap

from helpers import assert_close
from resolvent.models import (
    AdSConfig,
    ChannelsConfig,
    ClassifierConfig,
    DSSConfig,
    EMAConfig,
    GriffinConfig,
    H3Config,
    HawkConfig,
    LRUConfig,
    MambaConfig,
    MegaConfig,
    Model,
    ModelConfig,
    RegressionConfig,
    ResidualConfig,
    RetrievalConfig,
    RGLRUConfig,
    S4Config,
    S4DConfig,
    S5Config,
    S6Config,
    ScalarS6Config,
    TokensConfig,
    build_model,
    count_parameters,
    make_layer,
    optim_groups,
)
from resolvent.models.presets import l2ru_classifier

F64 = torch.float64
SMALL = ModelConfig(ChannelsConfig(2), d_model=6, layers=2, head=ClassifierConfig(3))
BLOCKS: dict[str, ModelConfig] = {
    "residual": replace(SMALL, block=ResidualConfig(S4DConfig(4)), norm="batch", prenorm=False, input_norm="layer"),
    "lru": replace(SMALL, block=ResidualConfig(LRUConfig(4), "half_glu1"), ads=AdSConfig("tanh"), final_norm=True),
    "mamba": replace(SMALL, block=MambaConfig(4), norm="rms", ads=AdSConfig(shift=True)),
    "mega": replace(SMALL, block=MegaConfig(3, 4, 5, 2, chunk=3), prenorm=False, ads=AdSConfig()),
    "hawk": replace(SMALL, block=HawkConfig(heads=2), norm="rms"),
    "griffin": replace(SMALL, block=GriffinConfig(attention_heads=1, window=4), norm="rms", layers=3, ads=AdSConfig()),
    "h3": replace(SMALL, block=H3Config(4, 2), ads=AdSConfig("sigmoid")),
}
POOLS = ["mean", "last", "max"]


def ready(config: ModelConfig) -> Any:
    model = build_model(config).double().eval()
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.1 * torch.randn_like(p))
        for name, buffer in model.named_buffers():
            buffer.copy_(torch.rand_like(buffer) + 0.5) if name.endswith("running_var") else None
    return model


def channels(b: int, l: int) -> Tensor:
    return torch.randn(b, l, 2, dtype=F64)


@pytest.mark.parametrize("name", BLOCKS)
def test_a_stream_answers_as_if_the_sequence_ended_there(name: str) -> None:
    model, x = ready(BLOCKS[name]), channels(2, 9)
    want = torch.stack([model(x[:, : t + 1]) for t in range(9)], 1)
    whole, _ = model.stream(x)
    assert_close(whole, want)
    first, state = model.stream(x[:, :4])
    rest, _ = model.stream(x[:, 4:], state)
    assert_close(torch.cat([first, rest], 1), want)
    state, steps = None, []
    for x_t in x.unbind(1):
        y_t, state = model.step(x_t, state)
        steps.append(y_t)
    assert_close(torch.stack(steps, 1), want)


@pytest.mark.parametrize(("pooling", "name"), list(itertools.product(POOLS, ["residual", "mega"])))
def test_padding_equals_the_short_sequence_alone(pooling: str, name: str) -> None:
    config = replace(BLOCKS[name], head=ClassifierConfig(3, pooling, hidden=4))  # type: ignore[arg-type]
    model, lengths = ready(config), torch.tensor([8, 1, 5])
    x = channels(3, 8)
    x[1, 1:], x[2, 5:] = 1e3, 1e3
    got = model(x, lengths)
    for i, l in enumerate(lengths.tolist()):
        assert_close(got[i : i + 1], model(x[i : i + 1, :l]))
    stream = torch.stack([model.stream(x[2:3, :5])[0][0, t] for t in range(5)])
    assert_close(stream[-1:], got[2:3])


def test_pooling_by_hand() -> None:
    model = ready(SMALL)
    e = model.embed(channels(2, 5))
    f = model.tower.features(e)[0]
    by_hand = {"mean": sum(f[:, t] for t in range(5)) / 5, "last": f[:, 4], "max": f.max(1).values}
    for pooling, vector in by_hand.items():
        model.head.pooling = pooling
        assert_close(model.from_embedding(e), vector @ model.head.out.weight.T + model.head.out.bias)


def test_whole_output_sequence() -> None:
    model = ready(replace(SMALL, head=RegressionConfig(4, "none")))
    x, lengths = channels(2, 6), torch.tensor([6, 2])
    y = model(x, lengths)
    assert y.shape == (2, 6, 4)
    assert not y[1, 2:].any()
    assert_close(y[1:, :2], model(x[1:, :2]))
    assert_close(model.stream(x)[0], model(x))
    assert ready(replace(SMALL, head=RegressionConfig(4, "last")))(x).shape == (2, 4)


def test_two_towers_share_weights_and_compare_documents() -> None:
    config = replace(SMALL, input=TokensConfig(7), head=RetrievalConfig(hidden=5))
    model = ready(config)
    x, lengths = torch.randint(0, 7, (3, 2, 8)), torch.tensor([[8, 3], [2, 8], [5, 5]])
    got = model(x, lengths)
    assert got.shape == (3, 2)
    e = [model.tower.features(model.tower.embed(x[1, j : j + 1, : lengths[1, j]]))[0].mean(1) for j in (0, 1)]
    joined = torch.cat([e[0], e[1], e[0] * e[1], e[0] - e[1]], -1)
    hidden = torch.nn.functional.gelu(joined @ model.head.hidden.weight.T + model.head.hidden.bias)
    assert_close(got[1:2], hidden @ model.head.out.weight.T + model.head.out.bias)
    with pytest.raises(ValueError, match="two documents"):
        model(x[:, 0])
    with pytest.raises(ValueError, match="lengths"):
        model(x, lengths[:, 0])
    with pytest.raises(ValueError, match=r"two documents per row, a tensor .* got ndarray"):
        model(x.numpy())
    with pytest.raises(ValueError, match=r"expected lengths, a tensor .* got list"):
        model(x, lengths.tolist())


def test_tokens_can_be_attacked_where_they_are_real() -> None:
    model = ready(replace(SMALL, input=TokensConfig(11)))
    x = torch.randint(0, 11, (2, 6))
    e = model.embed(x).detach().requires_grad_()
    logits = model.from_embedding(e)
    assert_close(logits, model(x))
    (gradient,) = torch.autograd.grad(logits.logsumexp(-1).sum(), e)
    direction = torch.randn_like(e)
    h = 1e-5  # central difference: its own error is about h^2 and 1e-16 / h
    moved = [model.from_embedding(e + s * h * direction).logsumexp(-1).sum() for s in (1, -1)]
    assert_close((gradient * direction).sum(), (moved[0] - moved[1]) / (2 * h), tolerance=1e-8)


def test_both_directions_refuse_to_stream() -> None:
    model = ready(replace(SMALL, block=ResidualConfig(S5Config(4, bidirectional=True))))
    with pytest.raises(ValueError, match="bidirectional"):
        model.stream(channels(1, 3))
    with pytest.raises(ValueError, match="bidirectional"):
        model.step(channels(1, 3)[:, 0])


@pytest.mark.parametrize("name", BLOCKS)
def test_shapes_come_without_values(name: str) -> None:
    """On the meta device, whole, padded and as a stream, and with fake tensors."""
    for head in (SMALL.head, RegressionConfig(4)):
        model = build_model(replace(BLOCKS[name], head=head)).eval()
        x, lengths = torch.randn(3, 9, 2), torch.tensor([9, 1, 4])
        want = model(x).shape
        with FakeTensorMode() as mode:
            fake = {n: mode.from_tensor(t) for n, t in (*model.named_parameters(), *model.named_buffers())}
            assert functional_call(model, fake, (mode.from_tensor(x), mode.from_tensor(lengths))).shape == want
        model, x = model.to("meta"), x.to("meta")
        assert model(x).shape == model(x, lengths.to("meta")).shape == want
        model.train()(x).sum().backward()
        assert all(p.grad is not None and p.grad.shape == p.shape for p in model.parameters())
        y, state = model.eval().step(x[:, 0])
        assert model.stream(x[:, 1:], state)[0].shape == (3, 8, y.shape[1])


def test_gradients_of_each_sample_by_torch_func() -> None:
    """Tokens and lengths are mapped over, so that neither can be read."""
    model = ready(replace(SMALL, input=TokensConfig(7)))
    x, lengths = torch.randint(0, 7, (3, 8)), torch.tensor([8, 2, 5])
    own = {name: p.detach() for name, p in model.named_parameters()}

    def loss(p: dict[str, Tensor], x: Tensor, n: Tensor) -> Tensor:
        return functional_call(model, p, (x[None], n[None])).square().sum()

    got = vmap(grad(loss), (None, 0, 0))(own, x, lengths)
    for i in range(3):
        alone = model(x[i : i + 1, : lengths[i]]).square().sum()
        want = torch.autograd.grad(alone, [*model.parameters()])
        assert_close([got[name][i] for name in own], list(want), gradient=True)


def test_frozen_keeps_values_and_input_gradients() -> None:
    model, x = ready(BLOCKS["residual"]), channels(2, 5).requires_grad_()
    (want,) = torch.autograd.grad(model(x).square().sum(), x)
    with model.frozen():
        (got,) = torch.autograd.grad(model(x).square().sum(), x)
        assert not any(p.requires_grad for p in model.parameters())
    assert_close(got, want)


@pytest.mark.parametrize("name", ["lru", "mamba"])
def test_compiles_in_one_graph(name: str) -> None:
    model, x, lengths = ready(BLOCKS[name]), channels(2, 7), torch.tensor([7, 3])
    torch._dynamo.reset()
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    assert_close(compiled(x, lengths), model(x, lengths))
    assert_close(compiled(x), model(x))


def test_a_certified_model_compiles_for_one_step() -> None:
    """Its pool's powers [b, A b, ...] and their gradient are then what came in."""
    model, x = ready(l2ru_classifier(d_model=1, layers=1, hidden=4)), channels(2, 1)[..., :1]
    torch._dynamo.reset()
    found = []
    for run in (model, torch.compile(model, backend="aot_eager", fullgraph=True)):
        y = run(x)
        found.append([y, *torch.autograd.grad(y.square().sum(), [*model.parameters()])])
    assert_close(found[1], found[0], gradient=True)


def test_training_reaches_every_parameter_and_half_precision_runs() -> None:
    for name, config in BLOCKS.items():
        model = build_model(replace(config, dropout=0.1)).train()
        model(torch.randn(4, 7, 2), torch.tensor([7, 3, 1, 5])).square().sum().backward()
        assert all(p.grad is not None and torch.isfinite(p.grad).all() for p in model.parameters()), name
        assert model.eval().bfloat16()(torch.randn(2, 7, 2).bfloat16()).dtype == torch.bfloat16


@pytest.mark.parametrize(
    "layer",
    [
        S4Config(4),
        S4DConfig(4, "inv"),
        DSSConfig(4),
        S5Config(4),
        LRUConfig(4),
        EMAConfig(4),
        S6Config(4),
        ScalarS6Config(4, fixed_A=True),
        RGLRUConfig(2),
    ],
    ids=lambda c: type(c).__name__,
)
def test_settings_make_their_layer(layer: Any) -> None:
    made = make_layer(6, layer)
    assert type(made).__name__ + "Config" == type(layer).__name__
    assert made(torch.randn(2, 5, 6))[0].shape == (2, 5, 6)


def test_groups_hold_every_parameter_once() -> None:
    model = build_model(BLOCKS["mamba"])
    groups = optim_groups(model)
    held = [id(p) for group in groups for p in group["params"]]
    assert sorted(held) == sorted(id(p) for p in model.parameters())
    assert len(groups) == 2  # plain, and without weight decay
    torch.optim.AdamW(groups, lr=1e-3, weight_decay=0.1).step()
    assert count_parameters(model) == sum(p.numel() for p in model.parameters())


def test_bad_input_is_explained() -> None:
    model, tokens = build_model(SMALL), build_model(replace(SMALL, input=TokensConfig(5)))
    for f, x, kind, words in [
        (model, torch.randn(2, 5), ValueError, r"\(batch, length, 2\)"),
        (model, torch.zeros(2, 5, 2, dtype=torch.long), TypeError, "real input"),
        (model, [1.0], TypeError, "as_tensor"),
        (tokens, torch.randn(2, 5), TypeError, "integer tokens"),
        (tokens, torch.full((2, 5), 5), ValueError, r"0\.\.4"),
        (tokens, torch.zeros(5, dtype=torch.long), ValueError, r"\(batch, length\)"),
        (model, torch.randn(2, 5, 2, device="meta"), ValueError, r"on cpu where the model is, got meta; use x\.to"),
        (model, torch.randn(2, 0, 2), ValueError, "at least one step"),
        (lambda x: tokens.step(x), torch.zeros(2, 5, dtype=torch.long), ValueError, r"shape \(batch\), got \(2, 5\)"),
        (lambda x: tokens.step(x), torch.tensor(1), ValueError, r"shape \(batch\), got \(\)"),
    ]:
        with pytest.raises(kind, match=words):
            f(x)
    with pytest.raises(ValueError, match="1 to 4"):
        model(torch.randn(2, 4, 2), torch.tensor([5, 1]))
    with pytest.raises(TypeError, match="ModelConfig"):
        build_model({"d_model": 4})  # type: ignore[arg-type]


def test_model_is_the_public_type() -> None:
    assert isinstance(build_model(SMALL), Model)


def test_bad_streams_are_explained() -> None:
    model = build_model(SMALL).eval()
    x = torch.randn(2, 4, 2)
    _, state = model.stream(x)
    with pytest.raises(ValueError, match="returned last"):
        model.stream(x, state["body"])
    with pytest.raises(ValueError, match="batch"):
        model.stream(x[:1], state)
    with pytest.raises(ValueError, match=r"\(batch, 2\)"):
        model.step(torch.randn(2, 3), state)
    y, same = model.stream(x[:, :0], state)
    assert y.shape == (2, 0, 3)
    assert same is state
