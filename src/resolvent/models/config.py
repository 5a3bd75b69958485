"""A model's architecture as one frozen value: input, blocks, head. `build_model(config)` builds it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from resolvent.blocks.activation import Activation
from resolvent.blocks.ads import AdSKind
from resolvent.blocks.certified.residual import Sigma
from resolvent.blocks.mixer import MixerKind
from resolvent.blocks.norm import NormKind
from resolvent.models.layer_config import L2RUConfig, LayerConfig, NormalisedLRUConfig, S4DConfig
from resolvent.models.settings import Settings

Pooling = Literal["mean", "last", "max"]


@dataclass(frozen=True)
class ChannelsConfig(Settings):
    """Real input (b, l, channels), embedded by one linear map.

    Examples:
        >>> rv.models.ChannelsConfig(3).channels
        3
    """

    channels: int = 1
    bias: bool = True


@dataclass(frozen=True)
class TokensConfig(Settings):
    """Integer input (b, l) below `vocab`, embedded by a table initialised normal with standard deviation `std`.

    The embedding of a token is `scale` times its row (Griffin's language models: sqrt(d_model)).

    Examples:
        >>> config = rv.ModelConfig(rv.models.TokensConfig(vocab=9), d_model=8, layers=1)
        >>> rv.build_model(config)(torch.randint(9, (4, 20))).shape
        torch.Size([4, 10])
    """

    vocab: int
    std: float = 1.0
    scale: float = 1.0


@dataclass(frozen=True)
class AdSConfig(Settings):
    """Adaptive scaling after each state-space layer; `shift` adds the released code's second branch.

    Examples:
        >>> rv.models.AdSConfig("sigmoid").kind
        'sigmoid'
    """

    kind: AdSKind = "relu"
    shift: bool = False


@dataclass(frozen=True)
class ResidualConfig(Settings):
    """Any layer in a residual block: norm, layer, [AdS], activation, mixer, skip.

    Examples:
        >>> rv.models.ResidualConfig(rv.models.LRUConfig(16), mixer="mlp").mixer
        'mlp'
    """

    layer: LayerConfig = field(default_factory=S4DConfig)
    mixer: MixerKind = "glu"
    activation: Activation = "gelu"
    final_activation: Activation = "none"
    expand: int = 4
    skip: bool = True


@dataclass(frozen=True)
class MambaConfig(Settings):
    """`dt_rank` "auto": ceil(d_model / 16); `bias` of the input and output projections, `conv_bias` of the convolution.

    `layer` None: S6 of d_state states, as published; else the layer that replaces it.

    Examples:
        >>> config = rv.ModelConfig(block=rv.models.MambaConfig(8), d_model=8, layers=1)
        >>> rv.build_model(config)(torch.rand(2, 20, 1)).shape
        torch.Size([2, 10])
    """

    d_state: int = 16
    expand: int = 2
    width: int = 4
    dt_rank: int | Literal["auto"] = "auto"
    bias: bool = False
    conv_bias: bool = True
    layer: LayerConfig | None = None


@dataclass(frozen=True)
class MegaConfig(Settings):
    """z: query and key width; hidden: value width; ffn: width of the feed-forward part; chunk None: no chunking.

    `max_length` is the number of distances of the relative bias when there is no chunk. `unmasked`: attention sees both
    sides while the moving average is causal.

    Examples:
        >>> rv.models.MegaConfig(z=16, hidden=32).z
        16
    """

    z: int = 64
    hidden: int = 256
    ffn: int = 256
    d_state: int = 16
    attention: Literal["softmax", "laplace"] = "softmax"
    chunk: int | None = None
    max_length: int = 1024
    bidirectional: bool = False
    unmasked: bool = False


@dataclass(frozen=True)
class HawkConfig(Settings):
    """Recurrent blocks only; `inner` is the recurrence's width (d_model when None).

    Examples:
        >>> rv.models.HawkConfig(heads=2).heads
        2
    """

    inner: int | None = None
    heads: int = 1
    width: int = 4
    expand: int = 3


@dataclass(frozen=True)
class GriffinConfig(Settings):
    """Two recurrent blocks, then local multi-query attention, repeated.

    Examples:
        >>> rv.models.GriffinConfig(window=128).window
        128
    """

    inner: int | None = None
    heads: int = 1
    width: int = 4
    expand: int = 3
    attention_heads: int = 4
    window: int = 1024
    kv_heads: int = 1


@dataclass(frozen=True)
class H3Config(Settings):
    """`layer` None: S4D of d_state states, as published; else the layer on the heads that replaces it.

    Examples:
        >>> rv.models.H3Config(d_state=16).d_state
        16
    """

    d_state: int = 64
    head_dim: int = 1
    expand: int = 4
    layer: LayerConfig | None = None


@dataclass(frozen=True)
class AttentionConfig(Settings):
    """Softmax attention with rotary positions and an MLP, each in its own residual part; `window` None: full attention.

    Examples:
        >>> rv.models.AttentionConfig(heads=2).heads
        2
    """

    heads: int = 4
    window: int | None = None
    expand: int = 4
    bidirectional: bool = False


@dataclass(frozen=True)
class LipschitzConfig(Settings):
    """y = (x + sigma(g(x))) / (1 + gamma) with a recurrence g of gain gamma: 1-Lipschitz, for certified models.

    Examples:
        >>> rv.models.LipschitzConfig(rv.models.L2RUConfig(gamma=0.5)).layer.gamma
        0.5
    """

    layer: L2RUConfig | NormalisedLRUConfig = field(default_factory=L2RUConfig)
    sigma: Sigma = "sandwich"


BlockConfig = (
    ResidualConfig
    | MambaConfig
    | MegaConfig
    | HawkConfig
    | GriffinConfig
    | H3Config
    | AttentionConfig
    | LipschitzConfig
)


@dataclass(frozen=True)
class ClassifierConfig(Settings):
    """Logits after pooling over time; `hidden` > 0 adds one GELU layer before. One class: a binary logit.

    `std` initialises the output weights normal with that standard deviation, instead of nn.Linear's uniform default.
    Pooling "state" is for certified models: see `CertifiedConfig`.

    Examples:
        >>> rv.models.ClassifierConfig(classes=5, pooling="last").classes
        5
    """

    classes: int = 10
    pooling: Literal["mean", "last", "max", "state"] = "mean"
    hidden: int = 0
    bias: bool = True
    std: float | None = None


@dataclass(frozen=True)
class LevelsConfig(Settings):
    """Logits from the shares of the time that each channel is above each of `levels` levels: see `LevelReadout`.

    Examples:
        >>> rv.models.LevelsConfig(classes=3, levels=4).levels
        4
    """

    classes: int = 10
    levels: int = 8
    bias: bool = True


@dataclass(frozen=True)
class RegressionConfig(Settings):
    """`outputs` real values after pooling, or at every step when pooling is "none" (system identification).

    Examples:
        >>> config = rv.ModelConfig(head=rv.models.RegressionConfig(outputs=2), d_model=8, layers=1)
        >>> rv.build_model(config)(torch.rand(4, 20, 1)).shape
        torch.Size([4, 20, 2])
    """

    outputs: int = 1
    pooling: Literal["mean", "last", "max", "none"] = "none"
    bias: bool = True


@dataclass(frozen=True)
class LanguageConfig(Settings):
    """Logits of the next token at every step (b, l, vocab), by the embedding's own table where `tied`.

    soft_cap   None, or c: logits become c tanh(logits / c)

    Examples:
        >>> rv.models.LanguageConfig(soft_cap=30.0).soft_cap
        30.0
    """

    tied: bool = True
    soft_cap: float | None = None


@dataclass(frozen=True)
class RetrievalConfig(Settings):
    """Two documents (b, 2, l) through one tower; [e1, e2, e1 * e2, e1 - e2] to logits by one hidden layer.

    Examples:
        >>> config = rv.ModelConfig(rv.models.TokensConfig(9), head=rv.models.RetrievalConfig(), d_model=8, layers=1)
        >>> rv.build_model(config)(torch.randint(9, (4, 2, 20))).shape
        torch.Size([4, 2])
    """

    classes: int = 2
    pooling: Pooling = "mean"
    hidden: int | None = None


@dataclass(frozen=True)
class CertifiedConfig(Settings):
    """A model whose Lipschitz constant is at most `gain` for any weights; it needs LipschitzConfig blocks.

    kind     "lipschitz": biases are allowed, output distances are bounded by gain times input distances;
             "gain": no biases, so that also |f(u)| <= gain |u|
    memory   states per channel of the pooling "state": the number of steps it can store without loss

    Examples:
        >>> rv.models.CertifiedConfig(gain=3.0).gain
        3.0
    """

    gain: float = 1.0
    kind: Literal["lipschitz", "gain"] = "lipschitz"
    memory: int = 64

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.gain < float("inf"):
            raise ValueError(f"CertifiedConfig: gain must be positive and finite, got {self.gain}.")


InputConfig = ChannelsConfig | TokensConfig
HeadConfig = ClassifierConfig | LevelsConfig | RegressionConfig | RetrievalConfig | LanguageConfig


@dataclass(frozen=True)
class ModelConfig(Settings):
    """input -> [input_norm] -> dropout -> `layers` blocks -> [final norm of the blocks' kind] -> head.

    norm_eps   of all norms; None: 1e-6 for "rms" and "scale", 1e-5 for "layer" and "batch"

    Examples:
        >>> block = rv.models.ResidualConfig(rv.models.S5Config(16))
        >>> enter, leave = rv.models.ChannelsConfig(2), rv.models.ClassifierConfig(3)
        >>> config = rv.ModelConfig(enter, block, leave, d_model=8, layers=1)
        >>> rv.build_model(config)(torch.rand(4, 20, 2)).shape
        torch.Size([4, 3])
    """

    input: InputConfig = field(default_factory=ChannelsConfig)
    block: BlockConfig = field(default_factory=ResidualConfig)
    head: HeadConfig = field(default_factory=ClassifierConfig)
    d_model: int = 128
    layers: int = 4
    norm: NormKind = "layer"
    norm_eps: float | None = None
    prenorm: bool = True
    input_norm: NormKind = "none"
    final_norm: bool = False
    dropout: float = 0.0
    ads: AdSConfig | None = None
    certified: CertifiedConfig | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("d_model", "layers"):
            value = getattr(self, name)
            if not isinstance(value, int) or value < 1:
                raise ValueError(f"ModelConfig: {name} must be a whole number of at least 1, got {value!r}.")
        if self.norm_eps is not None and not 0 <= self.norm_eps < float("inf"):
            raise ValueError(f"ModelConfig: norm_eps must be None, or finite and not negative; got {self.norm_eps}.")
        if not 0 <= self.dropout < 1:
            raise ValueError(f"ModelConfig: dropout must lie in [0, 1), got {self.dropout}.")
