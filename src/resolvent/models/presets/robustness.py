"""The models of the study of deep SSMs under adversarial training: its Table 3 (structure) and Table 4 (training).

`activation` chooses between two versions that differ: "gelu" is the printed table, "none" the released code, which
builds its activations but never applies them (and leaves out Mega's input LayerNorm).
"""

from __future__ import annotations

from typing import Literal, get_args

from resolvent.blocks.ads import AdSKind
from resolvent.models.config import (
    AdSConfig,
    BlockConfig,
    ChannelsConfig,
    ClassifierConfig,
    MambaConfig,
    MegaConfig,
    ModelConfig,
    ResidualConfig,
)
from resolvent.models.layer_config import DSSConfig, LayerConfig, S4Config, S5Config
from resolvent.models.presets.recipe import TrainConfig
from resolvent.usage.numbers import check_choice

Structure = Literal["s4", "dss", "s5", "mega", "mamba"]
Dataset = Literal["cifar10", "mnist"]
Version = Literal["none", "gelu"]


def robustness(
    structure: Structure,
    dataset: Dataset = "cifar10",
    *,
    ads: AdSKind | None = None,
    shift: bool = False,
    activation: Version = "none",
) -> ModelConfig:
    """One column of Table 3: Linear, LayerNorm, 4 (CIFAR-10) or 2 (MNIST) post-norm blocks of width 128, mean, Linear.

    `activation` selects the paper or its code where they differ: "gelu" is Table 3 as printed, "none" the
    released code, which applies no GELU in the S4 and DSS blocks and no LayerNorm to Mega's input.
    `ads` adds adaptive scaling after every state-space layer; `shift` adds the released code's additive branch.
    """
    check_choice("robustness", "structure", structure, get_args(Structure))
    check_choice("robustness", "dataset", dataset, get_args(Dataset))
    check_choice("robustness", "activation", activation, get_args(Version))
    colour = dataset == "cifar10"
    return ModelConfig(
        input=ChannelsConfig(3 if colour else 1),
        block=_block(structure, colour, activation),
        head=ClassifierConfig(10, "mean"),
        d_model=128,
        layers=4 if colour else 2,
        norm="layer",
        prenorm=False,
        input_norm="none" if structure == "mega" and activation == "none" else "layer",
        ads=None if ads is None else AdSConfig(ads, shift),
    )


def robustness_training(dataset: Dataset = "cifar10") -> TrainConfig:
    """Table 4: AdamW on one group of all parameters, cosine to zero."""
    check_choice("robustness_training", "dataset", dataset, get_args(Dataset))
    epochs = 180 if dataset == "cifar10" else 100
    return TrainConfig(lr=1e-3, weight_decay=2e-4, batch=256, epochs=epochs, groups=False)


def _block(structure: Structure, colour: bool, activation: Version) -> BlockConfig:
    if structure == "mega":
        width = 256 if colour else 32
        return MegaConfig(hidden=width, ffn=width, max_length=1024 if colour else 784, bidirectional=True)
    if structure == "mamba":
        return MambaConfig(16 if colour else 32)
    if structure == "s5":  # the table lists no activation and no linear map after S5
        return ResidualConfig(S5Config(128, conjugate=False), mixer="none", activation="none")
    states = 64 if colour else 32
    layer: LayerConfig = S4Config(states) if structure == "s4" else DSSConfig(states // 2, "softmax", separate_dt=False)
    return ResidualConfig(layer, mixer="linear", activation=activation, final_activation=activation)
