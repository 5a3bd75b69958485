"""Published models: parameter counts summed by hand from their parts, and the settings that the papers state."""

from __future__ import annotations

import math
from typing import Any, get_args

import pytest
import torch

from resolvent.models import ModelConfig, build_model, count_parameters, presets
from resolvent.models.config import ChannelsConfig, MegaConfig, ResidualConfig, TokensConfig
from resolvent.models.presets.generalisation import StudyTask
from resolvent.models.presets.lra import Family
from resolvent.models.presets.lra_task import Task
from resolvent.models.presets.robustness import Structure


def linear(i: int, o: int, bias: bool = True) -> int:
    return i * o + (o if bias else 0)


def s4(d: int, n: int, directions: int = 1) -> int:
    shared = n // 2 + n // 2 + 2 * (n // 2) + 2 * (n // 2)  # decay, frequency, P, B of one conjugate half
    return shared + d + directions * 2 * (n // 2) * d + d  # dt, C for each direction, D


def s4d(d: int, n: int, directions: int = 1) -> int:
    return d * (n // 2) * (1 + 1 + 2) + d + directions * 2 * (n // 2) * d + d  # decay, frequency, B; dt; C; D


def dss(d: int, n: int) -> int:
    return n + n + d + 2 * n * d + d  # decay, frequency, dt, W, D


def s5(d: int, p: int, directions: int = 1) -> int:
    return 2 * p + p + 2 * p * d + directions * 2 * d * p + d  # lam, step, B, C, D


def lru(d: int, n: int) -> int:
    return 3 * n + 2 * n * d + 2 * d * n + d  # nu, theta, gamma; B; C; D


def mega(d: int, z: int, hidden: int, ffn: int, positions: int, norm: int) -> int:
    average = 2 * 4 * d * 16 + d  # both directions of (alpha, damping, beta, eta), and omega
    attention = linear(d, hidden) + linear(d, 2 * d + z + hidden) + linear(hidden, d) + 4 * z + 2 * positions - 1
    return average + attention + norm + linear(d, ffn) + linear(ffn, d) + norm


def mamba(d: int, n: int) -> int:
    e, r = 2 * d, math.ceil(d / 16)
    s6 = linear(e, r + 2 * n, False) + linear(r, e) + e * n + e  # x_proj, dt_proj, A_log, D
    return linear(d, 2 * e, False) + 4 * e + e + s6 + linear(e, d, False)


def counted(config: ModelConfig) -> int:
    return count_parameters(build_model(config))


D = 128
NORM = 2 * D


@pytest.mark.parametrize(("dataset", "channels", "layers"), [("cifar10", 3, 4), ("mnist", 1, 2)])
@pytest.mark.parametrize("structure", get_args(Structure))
@pytest.mark.parametrize(("ads", "shift"), [(None, False), ("relu", False), ("tanh", True)])
def test_robustness_counts(
    dataset: Any, channels: int, layers: int, structure: Structure, ads: Any, shift: bool
) -> None:
    n, width = (64, 256) if dataset == "cifar10" else (32, 32)
    block = {
        "s4": s4(D, n) + linear(D, D) + NORM,
        "dss": dss(D, n // 2) + linear(D, D) + NORM,
        "s5": s5(D, 128) + NORM,
        "mega": mega(D, 64, width, width, 1024 if dataset == "cifar10" else 784, NORM),
        "mamba": mamba(D, 16 if dataset == "cifar10" else 32) + NORM,
    }[structure]
    scaled = 2 * D if structure == "mamba" else D
    block += 0 if ads is None else linear(scaled, scaled) * (2 if shift else 1)
    norm_in = 0 if structure == "mega" else NORM  # the released code has none there
    want = linear(channels, D) + norm_in + layers * block + linear(D, 10)
    assert counted(presets.robustness(structure, dataset, ads=ads, shift=shift)) == want


def test_robustness_versions_differ_in_activations_only() -> None:
    paper, code = (presets.robustness("s4", activation=a) for a in ("gelu", "none"))
    assert counted(paper) == counted(code)
    assert (paper.block.activation, paper.block.final_activation) == ("gelu", "gelu")
    assert (code.block.activation, code.block.final_activation) == ("none", "none")
    assert presets.robustness("mega", activation="gelu").input_norm == "layer"
    torch.manual_seed(0)
    a = build_model(paper)
    torch.manual_seed(0)
    b = build_model(code)
    x = torch.rand(2, 32, 3)
    assert not torch.allclose(a(x), b(x))


@pytest.mark.parametrize("structure", get_args(Structure))
def test_robustness_models_run(structure: Structure) -> None:
    model = build_model(presets.robustness(structure, "mnist", ads="sigmoid"))
    x = torch.rand(2, 30, 1, requires_grad=True)
    y = model(x)
    assert y.shape == (2, 10)
    (g,) = torch.autograd.grad(y.logsumexp(-1).sum(), x)
    assert torch.isfinite(g).all()
    assert g.abs().sum() > 0


def test_robustness_training_is_table_4() -> None:
    assert [presets.robustness_training(d).epochs for d in ("cifar10", "mnist")] == [180, 100]
    config = presets.robustness_training()
    assert (config.lr, config.weight_decay, config.batch, config.groups) == (1e-3, 2e-4, 256, False)


LRA_IN = {"listops": 16, "text": 135, "retrieval": 98}


def lra_rest(task: Task, d: int, hidden: int = 0, channels: int = 1) -> int:
    """Everything but the blocks: the way in and the head."""
    enter = LRA_IN[task] * d if task in LRA_IN else linear(channels, d)
    classes = 10 if task in ("listops", "image") else 2
    if task == "retrieval":
        return enter + linear(4 * d, hidden or d) + linear(hidden or d, 2)
    return enter + (linear(d, hidden) + linear(hidden, classes) if hidden else linear(d, classes))


S4_ROWS = {
    "listops": (256, 4, 0), "text": (256, 4, 1), "retrieval": (256, 4, 1),
    "image": (512, 64, 0), "pathfinder": (256, 64, 1), "pathx": (256, 64, 1),
}  # fmt: skip
S5_ROWS = {
    "listops": (8, 128, 16), "text": (6, 256, 192), "retrieval": (6, 128, 256),
    "image": (6, 512, 384), "pathfinder": (6, 192, 256), "pathx": (6, 128, 256),
}  # fmt: skip
MEGA_ROWS = {  # layers, d, z, hidden = ffn, positions, parameters of one norm, final norm
    "listops": (6, 80, 64, 160, 2048, 160, 0), "text": (4, 128, 64, 256, 4096, 1, 0),
    "retrieval": (6, 128, 64, 256, 4000, 1, 0), "image": (8, 160, 96, 320, 1024, 320, 1),
    "pathfinder": (6, 128, 64, 256, 1024, 256, 1), "pathx": (4, 64, 32, 128, 16384, 128, 1),
}  # fmt: skip
tasks = pytest.mark.parametrize("task", get_args(Task))


@tasks
def test_lra_counts_of_s4_and_s4d(task: Task) -> None:
    d, n, prenorm = S4_ROWS[task]
    rest = lra_rest(task, d) + 2 * d * prenorm  # a pre-norm model has one norm more, at the end
    assert counted(presets.lra("s4", task)) == rest + 6 * (s4(d, n, 2) + linear(d, 2 * d) + 2 * d)
    assert counted(presets.lra("s4d", task, init="lin")) == rest + 6 * (s4d(d, 64, 2) + linear(d, 2 * d) + 2 * d)


@tasks
def test_lra_counts_of_s5(task: Task) -> None:
    layers, d, p = S5_ROWS[task]
    block = s5(d, p // 2, 2) + linear(d, d) + 2 * d
    assert counted(presets.lra("s5", task)) == lra_rest(task, d) + layers * block
    whole = s5(d, p, 2) + linear(d, d) + 2 * d  # S5-PTD keeps both members of each conjugate pair, as released
    assert counted(presets.lra("s5_ptd", task)) == lra_rest(task, d) + layers * whole


S4_PTD_ROWS = {  # layers, d, prenorm
    "listops": (8, 256, 0), "text": (6, 256, 1), "retrieval": (6, 128, 1),
    "image": (6, 128, 0), "pathfinder": (6, 256, 1), "pathx": (6, 128, 1),
}  # fmt: skip


@tasks
def test_lra_counts_of_s4_ptd(task: Task) -> None:
    layers, d, prenorm = S4_PTD_ROWS[task]
    block = s4d(d, 64, 2) + linear(d, 2 * d) + 2 * d
    assert counted(presets.lra("s4_ptd", task)) == lra_rest(task, d) + 2 * d * prenorm + layers * block


@tasks
def test_lra_counts_of_lru(task: Task) -> None:
    block = lru(128, 128) + linear(128, 256) + 2 * 128
    rest = lra_rest(task, 128, channels=3 if task == "image" else 1)
    assert counted(presets.lra("lru", task)) == rest + 6 * block


@tasks
def test_lra_counts_of_mega(task: Task) -> None:
    layers, d, z, hidden, positions, norm, final = MEGA_ROWS[task]
    want = lra_rest(task, d, hidden) + layers * mega(d, z, hidden, hidden, positions, norm) + final * norm
    assert counted(presets.lra("mega", task)) == want


TRANSFORMER_ROWS = {  # layers, d, mlp: the arena's base configurations
    "listops": (6, 512, 2048), "text": (4, 256, 1024), "retrieval": (4, 128, 512),
    "image": (1, 32, 64), "pathfinder": (1, 128, 128),
}  # fmt: skip


@pytest.mark.parametrize("task", TRANSFORMER_ROWS)
def test_lra_counts_of_the_transformer(task: Task) -> None:
    layers, d, mlp = TRANSFORMER_ROWS[task]
    block = 4 * d * d + d + linear(d, mlp) + linear(mlp, d) + 2 * 2 * d  # q, k, v, o with one bias; two norms
    assert counted(presets.lra("transformer", task)) == lra_rest(task, d) + layers * block + 2 * d


def test_the_arenas_transformer_is_not_made_for_path_x() -> None:
    with pytest.raises(ValueError, match="not run on 'pathx'"):
        presets.lra("transformer", "pathx")
    assert presets.lra_training("transformer", "listops").lr == pytest.approx(0.05 * 1000**-0.5)


@pytest.mark.parametrize("family", get_args(Family))
def test_lra_settings_that_papers_state(family: Family) -> None:
    for task in (task for task in get_args(Task) if (family, task) != ("transformer", "pathx")):
        config, training = presets.lra(family, task), presets.lra_training(family, task)
        assert isinstance(config.input, TokensConfig) == (task in LRA_IN)
        assert (training.epochs is None) == (family == "mega")
        if family in ("s4", "s4d", "s4_ptd"):
            assert config.block.layer.dt_min == (1e-4 if task == "pathx" else 1e-3)
            assert config.block.layer.bidirectional
    assert presets.lra(family, "text", vocab=256).input.vocab == 256
    with pytest.raises(ValueError, match="no vocabulary"):
        presets.lra(family, "image", vocab=256)


def test_lra_details() -> None:
    assert presets.lra("lru", "pathx").block.layer.max_phase == math.pi / 10
    assert presets.lra("lru", "image").input == ChannelsConfig(3)  # the LRU paper's images are in colour
    assert presets.lra("s5", "listops").block.mixer == "half_glu2"
    assert presets.lra_training("s5", "image").lr == pytest.approx(4.5e-3)
    assert presets.lra_training("s5_ptd", "image").lr == pytest.approx(5e-3)
    assert presets.lra_training("s5_ptd", "pathfinder").epochs == 230
    assert {presets.lra(f, "text").block.layer.init for f in ("s4_ptd", "s5_ptd")} == {"ptd"}
    assert presets.lra("s4_ptd", "listops").block.layer.dt_max == 1.0
    assert presets.lra_training("s4_ptd", "listops").ssm_lr == 4e-4
    assert presets.lra("s4_ptd", "image").norm == "layer"
    image = presets.lra("mega", "image")
    assert isinstance(image.block, MegaConfig)
    assert (image.block.attention, image.prenorm, image.norm) == ("laplace", True, "batch")
    assert presets.mega("pathx", chunk=4096).block.chunk == 4096


@pytest.mark.parametrize("task", get_args(StudyTask))
@pytest.mark.parametrize("fixed", [False, True])
def test_selective_block(task: StudyTask, fixed: bool) -> None:
    config = presets.selective_block(task, abscissa=0.1, fixed_A=fixed)
    d, n = (4 if task == "majority" else 16), 4
    vocab, outputs = {"imdb": (30522, 1), "majority": (2, 1), "listops": (16, 10)}[task]
    A = 0 if fixed else d * n
    want = vocab * d + A + 2 * n * d + d + 1 + d * outputs  # embedding, A, W_B and W_C, q, p, w
    assert counted(config) == want
    model = build_model(config)
    layer = model.tower.body.blocks[0].layer
    assert layer.A.max().item() == pytest.approx(0.1)
    x = torch.randint(0, vocab, (3, 9))
    assert torch.equal(model(x), model.tower.features(model.embed(x))[0][:, -1] @ model.head.out.weight.T)


def test_selective_block_is_linear_attention_without_memory_loss() -> None:
    """With q = 0 and A = 0: y_T = dt sum_t (W_C u_T . W_B u_t) u_t."""
    model = build_model(presets.selective_block("listops", abscissa=0.0, fixed_A=True)).double()
    layer = model.tower.body.blocks[0].layer
    with torch.no_grad():
        layer.q.zero_()
    u = torch.randn(2, 7, 16, dtype=torch.float64)
    dt = math.log1p(math.exp(layer.p.item()))
    weights = torch.einsum("bn,btn->bt", u[:, -1] @ layer.W_C.T, u @ layer.W_B.T)
    want = dt * torch.einsum("bt,btd->bd", weights, u) @ model.head.out.weight.T
    torch.testing.assert_close(model.from_embedding(u), want, rtol=0, atol=1e-10 * want.abs().max().item())


def test_lru_stack() -> None:
    config = presets.lru_stack(2, 3, d_model=8, d_state=5, layers=3)
    assert counted(config) == 2 * 8 + 3 * (lru(8, 5) + linear(8, 16)) + 8 * 3
    model = build_model(config).double()
    u = torch.randn(2, 10, 2, dtype=torch.float64)
    y = u @ model.tower.entry.weight.T
    for block in model.tower.body.blocks:
        g = block.layer.system().simulate(y + 0j)[0].real
        value, gate = block.mixer.linear(torch.nn.functional.gelu(g, approximate="tanh")).chunk(2, -1)
        y = value * torch.sigmoid(gate) + y
    want = y @ model.head.out.weight.T
    torch.testing.assert_close(model(u), want, rtol=0, atol=1e-10 * want.abs().max().item())
    assert isinstance(presets.lru_stack(sigma="mlp").block, ResidualConfig)
