"""Weights of other projects: the packages that install here, and recorded parameters of those that do not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from record_foreign import CASES, FOLDER, made
from safetensors.torch import save_file
from torch import Tensor, nn

import resolvent as rv
from helpers import assert_close
from resolvent.models import import_weights

try:  # as the file is collected: it compiles a script on import, which tests' poisoned memory does not suit
    from neural_ssm.ssm.cells.legacy.l2ru import L2RU as TheirL2RU
except ImportError:
    TheirL2RU = None
NEURAL_SSM = pytest.mark.skipif(TheirL2RU is None, reason="needs neural-ssm: pip install '.[parity]'")
PARITY = 1e-6  # what is promised; float64 without casts inside reaches 1e-10 and is held to it below
FACTS: dict[str, dict[str, Any]] = {
    "s4_example_prenorm": {"prenorm": True},
    "s5_bilinear": {"discretisation": "bilinear"},
    "s5_classifier": {"prenorm": True},
    "mega_unmasked": {"attention": "laplace"},
    "mega_masked": {"masked": True},
    "recurrentgemma": {"window": 4},
}


def stirred(module: nn.Module, by: float = 0.1) -> nn.Module:
    torch.manual_seed(1)
    with torch.no_grad():
        for p in module.parameters():
            p.add_(by * torch.randn_like(p))
    return module.eval()


def recorded(name: str) -> tuple[dict[str, Tensor], Tensor, Tensor]:
    with np.load(FOLDER / f"{name}.npz") as held:
        weights = {key[2:]: torch.from_numpy(held[key]) for key in held.files if key.startswith("w:")}
        return weights, torch.from_numpy(held["x"]), torch.from_numpy(held["y"])


# -- recorded ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CASES)
def test_recorded_parameters_give_the_recorded_output(name: str) -> None:
    weights, x, y = recorded(name)
    model = import_weights(name.split("_")[0], weights, **FACTS.get(name, {})).eval()
    got = model(x)
    assert_close(got[0] if isinstance(got, tuple) else got, y)


@pytest.mark.parametrize("name", CASES)
def test_the_records_are_what_the_script_makes(name: str) -> None:
    with np.load(FOLDER / f"{name}.npz") as held:
        now = made(name)
        assert set(held.files) == set(now)
        for key in held.files:
            np.testing.assert_allclose(held[key], now[key], rtol=1e-12, atol=1e-12)


# -- packages ----------------------------------------------------------------------------------------------------------

SMALL = {"vocab_size": 50, "hidden_size": 24, "state_size": 8, "num_hidden_layers": 2}
ODD = {"vocab_size": 33, "hidden_size": 40, "state_size": 5, "num_hidden_layers": 3, "time_step_rank": 7, "expand": 3,
       "use_bias": True, "use_conv_bias": False, "conv_kernel": 3, "tie_word_embeddings": False,
       "layer_norm_epsilon": 1e-3}  # fmt: skip


def their_mamba(settings: dict[str, Any]) -> Any:
    transformers = pytest.importorskip("transformers", reason="transformers is in the parity extra")
    torch.manual_seed(0)
    return stirred(transformers.MambaForCausalLM(transformers.MambaConfig(**settings)))


@pytest.mark.parametrize("settings", [SMALL, ODD], ids=["small", "odd"])
def test_mamba_of_transformers(settings: dict[str, Any]) -> None:
    theirs = their_mamba(settings).double()
    eps = settings.get("layer_norm_epsilon")
    ours = import_weights("transformers", theirs.state_dict(), norm_eps=eps)
    x = torch.randint(0, settings["vocab_size"], (2, 37))
    with torch.no_grad():
        # transformers casts norms, scan and logits to float32 even in a model of float64
        assert_close(ours(x), theirs(x).logits.double(), tolerance=PARITY)
    assert ours.config.head.tied == settings.get("tie_word_embeddings", True)


def test_a_folder_of_transformers_tells_its_settings(tmp_path: Path) -> None:
    theirs = their_mamba(ODD)
    theirs.save_pretrained(tmp_path / "whole")
    theirs.save_pretrained(tmp_path / "shards", max_shard_size="20KB")
    x = torch.randint(0, 33, (1, 9))
    for name in ("whole", "shards"):
        ours = import_weights("transformers", tmp_path / name)
        assert ours.config.norm_eps == 1e-3
        with torch.no_grad():
            assert_close(ours(x), theirs(x).logits, tolerance=PARITY)


def test_a_module_of_transformers_tells_its_settings() -> None:
    theirs = their_mamba(ODD).double()
    ours = import_weights("transformers", theirs)
    assert ours.config.norm_eps == 1e-3
    x = torch.randint(0, 33, (1, 9))
    with torch.no_grad():
        assert_close(ours(x), theirs(x).logits.double(), tolerance=PARITY)
    assert import_weights("transformers", theirs, norm_eps=1e-2).config.norm_eps == 1e-2


def test_same_names_and_shapes_that_mean_something_else_are_refused(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers", reason="transformers is in the parity extra")
    falcon = transformers.FalconMambaForCausalLM(transformers.FalconMambaConfig(**SMALL))
    falcon.save_pretrained(tmp_path)
    for weights in (falcon, tmp_path):
        with pytest.raises(ValueError, match="model_type 'falcon_mamba', expected 'mamba'"):
            import_weights("transformers", weights)
    with pytest.raises(ValueError, match="hidden_act 'gelu', expected 'silu'"):
        import_weights("transformers", their_mamba(SMALL | {"hidden_act": "gelu"}))
    rope = {"rope_type": "default", "rope_theta": 500.0, "partial_rotary_factor": 0.5}
    config = transformers.RecurrentGemmaConfig(
        vocab_size=50, hidden_size=32, num_hidden_layers=3, intermediate_size=192, num_attention_heads=4, lru_width=32,
        rope_parameters=rope,
    )  # fmt: skip
    with pytest.raises(ValueError, match=r"rope_theta 500\.0, expected 10000\.0"):
        import_weights("transformers", transformers.RecurrentGemmaForCausalLM(config))


@pytest.mark.parametrize("kv_heads", [1, 4])
def test_recurrentgemma_of_transformers(kv_heads: int) -> None:
    transformers = pytest.importorskip("transformers", reason="transformers is in the parity extra")
    torch.manual_seed(0)
    config = transformers.RecurrentGemmaConfig(
        vocab_size=50, hidden_size=32, num_hidden_layers=4, intermediate_size=192, num_attention_heads=4,
        num_key_value_heads=kv_heads, lru_width=48, attention_window_size=8,
    )  # fmt: skip
    theirs = stirred(transformers.RecurrentGemmaForCausalLM(config)).double()
    ours = import_weights("transformers", theirs.state_dict(), window=8)
    x = torch.randint(0, 50, (2, 29))
    with torch.no_grad():
        assert_close(ours(x), theirs(x).logits, tolerance=PARITY)  # their scan runs in float32


def test_mambapy() -> None:
    theirs = pytest.importorskip("mambapy.mamba", reason="mambapy is in the parity extra")
    torch.manual_seed(0)
    stack = stirred(theirs.Mamba(theirs.MambaConfig(d_model=20, n_layers=2, d_state=5, pscan=False))).double()
    ours = import_weights("mambapy", stack)
    x = torch.randn(2, 19, 20, dtype=torch.float64)
    with torch.no_grad():
        assert_close(ours(x)[0], stack(x), tolerance=PARITY)  # mambapy makes A in float32
        embedding, norm, out = torch.randn(11, 20).double(), torch.rand(20).double(), torch.randn(11, 20).double()
        names = {"embedding.weight": embedding, "norm_f.weight": norm, "lm_head.weight": out}
        names |= {f"mamba.{name}": tensor for name, tensor in stack.state_dict().items()}
        tokens = torch.randint(0, 11, (2, 13))
        features = stack(embedding[tokens])
        features = features * torch.rsqrt(features.square().mean(-1, keepdim=True) + 1e-5) * norm
        assert_close(import_weights("mambapy", names)(tokens), features @ out.mT, tolerance=PARITY)


@pytest.mark.parametrize("kind", [{}, {"bidir": True}, {"block_count": 2}], ids=str)
def test_s5_pytorch(kind: dict[str, Any]) -> None:
    theirs = pytest.importorskip("s5", reason="s5-pytorch is in the parity extra")
    torch.manual_seed(0)
    layer = stirred(theirs.S5(6, 8, **kind), 0.05)
    for p in layer.parameters():
        p.data = p.data.to(torch.complex128 if p.is_complex() else torch.float64)
    x = torch.randn(2, 17, 6, dtype=torch.float64)
    with torch.no_grad():
        assert_close(import_weights("s5-pytorch", layer.state_dict())(x)[0], layer(x))


@NEURAL_SSM
@pytest.mark.parametrize("gamma", [None, 1.7])
def test_l2ru_of_neural_ssm(gamma: float | None) -> None:
    torch.manual_seed(0)
    layer = stirred(TheirL2RU(5, gamma=gamma), 0.2).double()
    ours = import_weights("neural-ssm", layer.state_dict())
    x = torch.randn(2, 33, 5, dtype=torch.float64)
    with torch.no_grad():
        assert_close(ours(x)[0], layer(x)[0])
    assert ours.certificate().holds
    assert ours.gain() == pytest.approx(float(layer.gamma.detach()))


@NEURAL_SSM
def test_a_layer_of_neural_ssm_whose_gain_is_larger_than_it_says_is_refused() -> None:
    torch.manual_seed(1)
    layer = TheirL2RU(5, gamma=1.7, init="rand")
    with torch.no_grad():
        for p in layer.parameters():
            p.add_(0.2 * torch.randn_like(p))
    A, B, C, D = (t.detach().double() for t in layer.double().eval().set_param())
    turns = torch.exp(2j * torch.pi * torch.linspace(0, 1, 500, dtype=torch.float64))
    assert max(_gain_at(A, B, C, D, z) for z in turns) > 5
    with pytest.raises(ValueError, match="raise gamma"):
        import_weights("neural-ssm", layer.state_dict())
    assert import_weights("neural-ssm", layer.state_dict(), gamma=12.0).certificate().holds


def _gain_at(A: Tensor, B: Tensor, C: Tensor, D: Tensor, z: Tensor) -> float:
    transfer = (C + 0j) @ torch.linalg.solve(z * torch.eye(A.shape[0]) - A, B + 0j) + D
    return float(torch.linalg.matrix_norm(transfer, 2))


# -- bad input ---------------------------------------------------------------------------------------------------------


def test_wrong_and_partial_state_dicts_are_refused_with_names_and_shapes() -> None:
    whole = their_mamba(SMALL).state_dict()
    partial = {name: t for name, t in whole.items() if "layers.1.mixer.D" not in name}
    with pytest.raises(ValueError, match=r"layers\.1\.mixer\.D is missing \(for tower\.body.*\(48,\)"):
        import_weights("transformers", partial)
    wrong = whole | {"backbone.layers.0.mixer.x_proj.weight": torch.zeros(3, 48), "rope.inv": torch.zeros(7)}
    with pytest.raises(ValueError, match=r"x_proj\.weight \(3, 48\).*\(18, 48\).*rope\.inv \(7,\) is not known"):
        import_weights("transformers", wrong)
    with pytest.raises(ValueError, match=r"no weights of s5.*fc\.weight \(2, 3\)"):
        import_weights("s5", {"fc.weight": torch.zeros(2, 3)})
    with pytest.raises(ValueError, match="did you mean 'mamba_ssm'"):
        import_weights("mamba-ssm", whole)
    with pytest.raises(ValueError, match="did you mean 'norm_eps'"):
        import_weights("transformers", whole, norm_epsilon=1e-5)
    with pytest.raises(ValueError, match="got none"):
        import_weights("s4", {})
    with pytest.raises(ValueError, match=r"norm_f\.weight \(24,\) is of int8, expected for .* \(24,\)"):
        import_weights("transformers", whole | {"backbone.norm_f.weight": torch.ones(24, dtype=torch.int8)})
    with pytest.raises(ValueError, match=r"norm_f\.weight \(24,\) holds values that are not finite"):
        import_weights("transformers", whole | {"backbone.norm_f.weight": torch.full((24,), torch.nan)})
    with pytest.raises(ValueError, match="holds nothing"):
        import_weights("transformers", {name: t.to("meta") for name, t in whole.items()})


@pytest.mark.parametrize("before", ["module.", "_orig_mod.", "module._orig_mod."])
def test_names_of_a_wrapped_module(before: str) -> None:
    whole = their_mamba(SMALL).state_dict()
    x = torch.randint(0, 50, (1, 5))
    ours = import_weights("transformers", {f"{before}{name}": t for name, t in whole.items()})
    assert_close(ours(x), import_weights("transformers", whole)(x))


def test_nothing_is_unpickled(tmp_path: Path) -> None:
    whole = their_mamba(SMALL)
    torch.save(whole, tmp_path / "pickled.pt")
    with pytest.raises(ValueError, match="nothing is unpickled"):
        import_weights("transformers", tmp_path / "pickled.pt")
    torch.save({"state_dict": whole.state_dict()}, tmp_path / "plain.pt")
    weights = {name: t.clone() for name, t in whole.state_dict().items()}
    save_file(weights, tmp_path / "plain.safetensors")
    np.savez(tmp_path / "plain.npz", **{name: t.numpy() for name, t in weights.items()})
    x = torch.randint(0, 50, (1, 5))
    models = [import_weights("transformers", tmp_path / f"plain.{kind}") for kind in ("pt", "safetensors", "npz")]
    assert_close(models[1](x), models[0](x))
    assert_close(models[2](x), models[0](x))
    np.savez(tmp_path / "objects.npz", a=np.array([{}], dtype=object))
    (tmp_path / "broken.safetensors").write_bytes(b"\x00" * 20)
    for name in ("objects.npz", "broken.safetensors", "model.onnx"):
        (tmp_path / "model.onnx").touch()
        with pytest.raises(ValueError, match="import_weights"):
            import_weights("transformers", tmp_path / name)
    with pytest.raises(FileNotFoundError, match="no file"):
        import_weights("transformers", tmp_path / "absent.pt")


def test_a_forged_index_reads_nothing_outside_of_its_folder(tmp_path: Path) -> None:
    (tmp_path / "m").mkdir()
    save_file({"a": torch.zeros(1)}, tmp_path / "outside.safetensors")
    index = {"weight_map": {"a": "../outside.safetensors"}}
    (tmp_path / "m" / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ValueError, match="forged"):
        import_weights("transformers", tmp_path / "m")


# -- with its neighbours -----------------------------------------------------------------------------------------------


def test_an_imported_language_model_streams_saves_trains_and_is_attacked(tmp_path: Path) -> None:
    model = import_weights("transformers", their_mamba(SMALL).state_dict()).double()
    x, lengths = torch.randint(0, 50, (3, 11)), torch.tensor([11, 7, 1])
    logits = model(x)
    state = None
    for t in range(11):
        step, state = model.step(x[:, t], state)
        assert_close(step, logits[:, t])
    padded = model(x, lengths)
    assert_close(padded[1, :7], model(x[1:2, :7])[0])
    rv.save_model(model, tmp_path / "m")
    assert_close(rv.load_model(tmp_path / "m")(x), logits)
    loss = nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), x[:, 1:].flatten())
    loss.backward()
    assert all(p.grad is not None for p in model.parameters())

    def last(e: Tensor) -> Tensor:
        return model.from_embedding(e)[:, -1]

    e = model.embed(x).detach()
    y = last(e).argmax(-1)
    found = rv.attacks.pgd(last, e, y, rv.Threat("linf", 1.0), steps=5)
    assert float((last(found.x_adv).argmax(-1) == y).double().mean()) < 1.0


def test_a_tied_table_is_one_parameter() -> None:
    import copy

    model = import_weights("transformers", their_mamba(SMALL).state_dict())
    assert not any(name.startswith("head") for name in model.state_dict())
    twin = copy.deepcopy(model)
    x = torch.randint(0, 50, (1, 4))
    before = model(x)
    with torch.no_grad():
        twin.tower.entry.weight.zero_()
    assert_close(model(x), before)
    assert float(twin(x).detach().abs().max()) == 0
