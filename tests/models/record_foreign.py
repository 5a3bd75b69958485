"""Parameters under the names of projects that do not install here, and what their published formulas make of them.

Everything is numpy: dense matrices and loops over time as the papers write them, nothing of this library. Run

    python tests/models/record_foreign.py

to write tests/models/recorded/*.npz again; a test holds the files to what the script makes. An archive holds the
parameters (names with a leading "w:"), the input x and the output y.
"""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
from numpy_functions import gelu, gelu_tanh, layer_norm, run, sigmoid, silu, softplus
from scipy.special import erf

Arrays = dict[str, np.ndarray]
FOLDER = Path(__file__).parent / "recorded"


# -- state-spaces/s4 ---------------------------------------------------------------------------------------------------


def pairs(z: np.ndarray) -> np.ndarray:
    return np.stack([z.real, z.imag], -1)


def normal(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.standard_normal(shape) + 1j * rng.standard_normal(shape)


def s4_block(rng: np.random.Generator, d: int, n: int, copies: int, rank: int, length: int, back: bool) -> Arrays:
    """S4Block, kernel "dplr" (rank > 0) or "diag": A = diag(lam) - P P^*, C~ = (I - A_bar^L)^T C."""
    A_real, A_imag = 0.3 * rng.standard_normal((copies, n)), 2 * rng.standard_normal((copies, n))
    P, B = 0.5 * normal(rng, max(rank, 1), copies, n), normal(rng, 1, copies, n)
    directions = 2 if back else 1
    C, inv_dt = normal(rng, directions, d, n), np.log(rng.uniform(0.05, 0.3, (d, 1)))
    D = rng.standard_normal((1, d))
    u, W, b = rng.standard_normal((length, d)), rng.standard_normal((2 * d, d)) / 2, rng.standard_normal(2 * d)
    y, C_kept = np.zeros((length, d)), np.zeros_like(C)
    for h in range(d):
        s = h % copies
        lam, low = -np.exp(A_real[s]) - 1j * A_imag[s], P[:, s].T
        lam, low, Bh = np.r_[lam, lam.conj()], np.r_[low, low.conj()], np.r_[B[0, s], B[0, s].conj()]
        A, dt, eye = np.diag(lam), np.exp(inv_dt[h, 0]), np.eye(2 * n)
        if rank:
            A = A - low @ low.conj().T
            A_bar = np.linalg.solve(eye - dt / 2 * A, eye + dt / 2 * A)
            B_bar = np.linalg.solve(eye - dt / 2 * A, dt * Bh)
        else:
            A_bar, B_bar = np.diag(np.exp(dt * lam)), (np.exp(dt * lam) - 1) / lam * Bh
        for c in range(directions):
            row = np.r_[C[c, h], C[c, h].conj()]
            kept = row - np.linalg.matrix_power(A_bar, length).T @ row
            C_kept[c, h] = kept[:n]
            order = u[:, h] if c == 0 else np.r_[0, u[::-1, h][:-1]]  # the strict future, backwards
            out = run(A_bar, B_bar[:, None], row[None], order[:, None])[:, 0].real
            y[:, h] += out if c == 0 else out[::-1]
    value, gate = np.split(gelu(y + D[0] * u) @ W.T + b, 2, -1)
    kernel = {"A_real": A_real, "A_imag": A_imag, "B": pairs(B), "inv_dt": inv_dt, "C": pairs(C_kept if rank else C)}
    if rank:
        kernel |= {"P": pairs(P), "l_kernel": np.array(length)}
    made = {f"w:layer.kernel.{name}": value_ for name, value_ in kernel.items()}
    made |= {"w:layer.D": D, "w:output_linear.0.weight": W, "w:output_linear.0.bias": b}
    return made | {"x": u[None], "y": (value * sigmoid(gate))[None]}


def s4_example(rng: np.random.Generator, prenorm: bool) -> Arrays:
    """example.py's S4Model with two layers of the small S4D: exp(dt A) by its kernel, summed as a convolution."""
    d, n, length, channels, classes = 3, 2, 11, 2, 4
    W_in, b_in = rng.standard_normal((d, channels)), rng.standard_normal(d)
    W_out, b_out = rng.standard_normal((classes, d)), rng.standard_normal(classes)
    u = rng.standard_normal((length, channels))
    made: Arrays = {
        "w:encoder.weight": W_in,
        "w:encoder.bias": b_in,
        "w:decoder.weight": W_out,
        "w:decoder.bias": b_out,
    }
    x = u @ W_in.T + b_in
    for i in range(2):
        log_A, A_imag = 0.3 * rng.standard_normal((d, n)), 2 * rng.standard_normal((d, n))
        C, log_dt, D = normal(rng, d, n), np.log(rng.uniform(0.05, 0.3, d)), rng.standard_normal(d)
        W, b = rng.standard_normal((2 * d, d, 1)) / 2, rng.standard_normal(2 * d)
        scale, shift = 1 + 0.1 * rng.standard_normal(d), 0.1 * rng.standard_normal(d)
        z = layer_norm(x, scale, shift, 1e-5) if prenorm else x
        A, dt = -np.exp(log_A) + 1j * A_imag, np.exp(log_dt)[:, None]
        first = C * (np.exp(dt * A) - 1) / A
        K = np.array([2 * (first * np.exp(dt * A * k)).sum(1).real for k in range(length)])  # (l, d)
        y = np.array([sum(K[k] * z[t - k] for k in range(t + 1)) for t in range(length)]) + D * z
        value, gate = np.split(gelu(y) @ W[..., 0].T + b, 2, -1)
        x = x + value * sigmoid(gate)
        x = x if prenorm else layer_norm(x, scale, shift, 1e-5)
        own = {"kernel.log_A_real": log_A, "kernel.A_imag": A_imag, "kernel.C": pairs(C), "kernel.log_dt": log_dt}
        own |= {"D": D, "output_linear.0.weight": W, "output_linear.0.bias": b}
        made |= {f"w:s4_layers.{i}.{name}": value_ for name, value_ in own.items()}
        made |= {f"w:norms.{i}.weight": scale, f"w:norms.{i}.bias": shift}
    return made | {"x": u[None], "y": (x.mean(0) @ W_out.T + b_out)[None]}


# -- flax: S5 and minimal-LRU ------------------------------------------------------------------------------------------


def s5_layer(rng: np.random.Generator, u: np.ndarray, p: int, bilinear: bool, back: bool) -> tuple[Arrays, np.ndarray]:
    """x' = Lam x + B u by zero-order hold or bilinear, y = 2 Re(C x) + D u; with `back` [C1, C2] [x; x backwards]."""
    d = u.shape[1]
    lam, B = -np.exp(0.3 * rng.standard_normal(p)) + 2j * rng.standard_normal(p), normal(rng, p, d) / 2
    log_step, D = np.log(rng.uniform(0.05, 0.3, (p, 1))), rng.standard_normal(d)
    dt = np.exp(log_step[:, 0])
    if bilinear:
        lam_bar, gain = (1 + dt / 2 * lam) / (1 - dt / 2 * lam), dt / (1 - dt / 2 * lam)
    else:
        lam_bar, gain = np.exp(dt * lam), (np.exp(dt * lam) - 1) / lam
    made = {"Lambda_re": lam.real, "Lambda_im": lam.imag, "B": pairs(B), "log_step": log_step, "D": D}
    C = [normal(rng, d, p) for _ in range(2 if back else 1)]
    A, B_bar = np.diag(lam_bar), gain[:, None] * B
    y = 2 * run(A, B_bar, C[0], u).real + D * u
    if back:
        y = y + 2 * run(A, B_bar, C[1], u[::-1])[::-1].real
    names = ("C1", "C2") if back else ("C",)
    return made | {name: pairs(c) for name, c in zip(names, C, strict=True)}, y


def lru_layer(rng: np.random.Generator, u: np.ndarray, n: int) -> tuple[Arrays, np.ndarray]:
    d = u.shape[1]
    nu, theta = rng.uniform(-3, 0, n), rng.uniform(-2, 1, n)
    lam = np.exp(-np.exp(nu) + 1j * np.exp(theta))
    gamma = np.log(np.sqrt(1 - abs(lam) ** 2)) + 0.1 * rng.standard_normal(n)
    B, C, D = normal(rng, n, d), normal(rng, d, n), rng.standard_normal(d)
    y = run(np.diag(lam), np.exp(gamma)[:, None] * B, C, u).real + D * u
    made = {"nu_log": nu, "theta_log": theta, "gamma_log": gamma, "D": D}
    return made | {"B_re": B.real, "B_im": B.imag, "C_re": C.real, "C_im": C.imag}, y


def flax_classifier(rng: np.random.Generator, kind: str, batch: bool, prenorm: bool) -> Arrays:
    """Dense, two layers of norm, recurrence, tanh GELU, GLU and skip, the mean over time, Dense. Logits."""
    d, n, length, channels, classes = 3, 4, 9, 2, 5
    dense = {"encoder.encoder": (channels, d), "decoder": (d, classes)}
    made: Arrays = {}
    for name, shape in dense.items():
        made |= {f"w:{name}.kernel": rng.standard_normal(shape), f"w:{name}.bias": rng.standard_normal(shape[1])}
    u = rng.standard_normal((length, channels))
    x = u @ made["w:encoder.encoder.kernel"] + made["w:encoder.encoder.bias"]
    norm_name = "norm" if kind == "s5" else "normalization"
    for i in range(2):
        scale, shift = 1 + 0.1 * rng.standard_normal(d), 0.1 * rng.standard_normal(d)
        mean, var = rng.standard_normal(d), rng.uniform(0.5, 2, d)

        def norm(z: np.ndarray, scale=scale, shift=shift, mean=mean, var=var) -> np.ndarray:
            return (z - mean) / np.sqrt(var + 1e-5) * scale + shift if batch else layer_norm(z, scale, shift, 1e-6)

        z = norm(x) if prenorm else x
        seq, y = s5_layer(rng, z, n, False, False) if kind == "s5" else lru_layer(rng, z, n)
        K1, K2 = rng.standard_normal((2, d, d)) / 2
        b1, b2 = rng.standard_normal((2, d))
        g = gelu_tanh(y)
        x = x + (g @ K1 + b1) * sigmoid(g @ K2 + b2)
        x = x if prenorm else norm(x)
        here = f"w:encoder.layers_{i}."
        made |= {f"{here}seq.{name}": value for name, value in seq.items()}
        made |= {f"{here}out1.kernel": K1, f"{here}out2.kernel": K2, f"{here}out1.bias": b1, f"{here}out2.bias": b2}
        made |= {f"{here}{norm_name}.scale": scale, f"{here}{norm_name}.bias": shift}
        made |= {f"{here}{norm_name}.mean": mean, f"{here}{norm_name}.var": var} if batch else {}
    y = x.mean(0) @ made["w:decoder.kernel"] + made["w:decoder.bias"]
    return made | {"x": u[None], "y": y[None]}


def one_layer(rng: np.random.Generator, kind: str, **how: bool) -> Arrays:
    u = rng.standard_normal((13, 3))
    made, y = s5_layer(rng, u, 4, how["bilinear"], how["back"]) if kind == "s5" else lru_layer(rng, u, 4)
    return {f"w:{name}": value for name, value in made.items()} | {"x": u[None], "y": y[None]}


# -- Mega --------------------------------------------------------------------------------------------------------------


def ema(parameters: Arrays, u: np.ndarray, back: bool) -> np.ndarray:
    """Sum over states of p beta q^k eta / sqrt(n), forwards and, with `back`, backwards; plus omega u."""
    d, n = u.shape[1], parameters["gamma"].shape[1]
    p, damping = sigmoid(parameters["delta"][..., 0]), sigmoid(parameters["alpha"][..., 0])
    q, weight = 1 - p * damping, p * parameters["beta"][..., 0] * parameters["gamma"] / math.sqrt(n)
    y = parameters["omega"] * u
    for first, way in ((0, 1), (d, -1)) if back else ((0, 1),):
        h, out = np.zeros((d, n)), []
        for u_t in u[::way]:
            h = q[first : first + d] * h + u_t[:, None]
            out.append((weight[first : first + d] * h).sum(1))
        y = y + np.array(out)[::way]
    return y


def mega_layer(rng: np.random.Generator, back: bool, masked: bool, laplace: bool) -> Arrays:
    """Equations 7 to 15 of the paper with prenorm, then the feed-forward part."""
    d, z, hidden, n, ffn, length, most = 4, 3, 5, 2, 6, 7, 9
    rows = 2 * d if back else d
    move = {name: rng.standard_normal((rows, n, 1)) for name in ("delta", "alpha", "beta")}
    move |= {"gamma": rng.standard_normal((rows, n)), "omega": rng.standard_normal(d)}
    W_v, W_m, W_h = (
        rng.standard_normal((hidden, d)),
        rng.standard_normal((z + hidden + 2 * d, d)),
        rng.standard_normal((d, hidden)),
    )
    b_v, b_m, b_h = (rng.standard_normal(W.shape[0]) for W in (W_v, W_m, W_h))
    gamma, beta, line = rng.standard_normal((2, z)), rng.standard_normal((2, z)), rng.standard_normal(2 * most - 1)
    norms = [(1 + 0.1 * rng.standard_normal(d), 0.1 * rng.standard_normal(d)) for _ in range(2)]
    W_1, W_2 = rng.standard_normal((ffn, d)), rng.standard_normal((d, ffn))
    b_1, b_2 = rng.standard_normal(ffn), rng.standard_normal(d)
    x = rng.standard_normal((length, d))
    h = layer_norm(x, *norms[0], 1e-5)
    v, base = silu(h @ W_v.T + b_v), silu_first(ema(move, h, back)) @ W_m.T + b_m
    u, zz, r, hx = np.split(base, [d, d + z, d + z + hidden], -1)
    q, k = (silu(zz) * g + b for g, b in zip(gamma, beta, strict=True))
    o = attended(q, k, v, line, masked, laplace, most)
    new = silu(hx + (silu(r) * o) @ W_h.T + b_h)
    y = x + sigmoid(u) * (new - x)
    y = y + silu(layer_norm(y, *norms[1], 1e-5) @ W_1.T + b_1) @ W_2.T + b_2
    mega = {f"move.{name}": value for name, value in move.items()}
    mega |= {"v_proj.weight": W_v, "v_proj.bias": b_v, "mx_proj.weight": W_m, "mx_proj.bias": b_m}
    mega |= {"h_proj.weight": W_h, "h_proj.bias": b_h, "gamma": gamma, "beta": beta, "rel_pos_bias.rel_pos_bias": line}
    nffn = {"fc1.weight": W_1, "fc1.bias": b_1, "fc2.weight": W_2, "fc2.bias": b_2}
    made = {f"w:mega_layer.{name}": value for name, value in mega.items()} | {f"w:nffn.{n}": v for n, v in nffn.items()}
    for part, (scale, shift) in zip(("mega_layer", "nffn"), norms, strict=True):
        made |= {f"w:{part}.norm.norm.weight": scale, f"w:{part}.norm.norm.bias": shift}
    return made | {"x": x[None], "y": y[None]}


def silu_first(average: np.ndarray) -> np.ndarray:
    """Equation 7: the average goes through SiLU."""
    return silu(average)


def attended(
    q: np.ndarray, k: np.ndarray, v: np.ndarray, line: np.ndarray, masked: bool, laplace: bool, most: int
) -> np.ndarray:
    out = []
    for i in range(len(q)):
        seen = range(i + 1) if masked else range(len(q))
        bias = np.array([line[most - 1 + j - i] for j in seen])
        dots = np.array([q[i] @ k[j] for j in seen])
        if laplace:
            weights = 0.5 * (
                1 + erf((dots / len(dots) + bias - math.sqrt(0.5)) / (math.sqrt(0.25 / math.pi) * math.sqrt(2)))
            )
        else:
            scores = np.exp(dots / math.sqrt(q.shape[1]) + bias)
            weights = scores / scores.sum()
        out.append(weights @ v[: len(dots)])
    return np.array(out)


# -- recurrentgemma ----------------------------------------------------------------------------------------------------


def recurrentgemma(rng: np.random.Generator) -> Arrays:
    """Three blocks (recurrent, recurrent, local attention), embedding times bf16(sqrt d), logits capped at 30."""
    vocab, d, heads, width, inner, expand, window, cap = 11, 8, 2, 3, 12, 2, 4, 30.0
    table = rng.standard_normal((vocab, d))
    tokens = rng.integers(0, vocab, 10)
    x = table[tokens] * 2.828125  # sqrt(8) in bfloat16
    made: Arrays = {"w:embedder.input_embedding": table}
    for i in range(3):
        own, out = griffin_time(rng, rms(x, scale := 0.1 * rng.standard_normal(d)), heads, inner, width, window, i == 2)
        made |= {f"w:blocks.{i}.temporal_pre_norm.scale": scale}
        made |= {f"w:blocks.{i}.{name}": value for name, value in own.items()}
        x = x + out
        scale, e = 0.1 * rng.standard_normal(d), expand * d
        up, b_up = rng.standard_normal((2, d, e)) / 3, rng.standard_normal((2, 1, 1, e))
        down, b_down = rng.standard_normal((d, e)) / 3, rng.standard_normal(d)
        g = rms(x, scale)
        x = x + (gelu_tanh(g @ up[0] + b_up[0, 0, 0]) * (g @ up[1] + b_up[1, 0, 0])) @ down.T + b_down
        mlp = {"ffw_up.w": up, "ffw_up.b": b_up, "ffw_down.weight": down, "ffw_down.bias": b_down}
        made |= {f"w:blocks.{i}.channel_pre_norm.scale": scale}
        made |= {f"w:blocks.{i}.mlp_block.{name}": value for name, value in mlp.items()}
    scale = 0.1 * rng.standard_normal(d)
    y = cap * np.tanh(rms(x, scale) @ table.T / cap)
    return made | {"w:final_norm.scale": scale, "x": tokens[None], "y": y[None]}


def rms(x: np.ndarray, scale: np.ndarray) -> np.ndarray:
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-6) * (1 + scale)


def griffin_time(
    rng: np.random.Generator, x: np.ndarray, heads: int, inner: int, width: int, window: int, attends: bool
) -> tuple[Arrays, np.ndarray]:
    d = x.shape[1]
    if attends:
        e = d // heads
        W = {
            name: rng.standard_normal(s) / 2
            for name, s in {"q": (d, d), "k": (e, d), "v": (e, d), "final": (d, d)}.items()
        }
        bias = rng.standard_normal(d)
        q, k, v = x @ W["q"].T, turned(x @ W["k"].T), x @ W["v"].T
        out = np.zeros((len(x), d))
        for h in range(heads):
            qh = turned(q[:, h * e : (h + 1) * e])
            for t in range(len(x)):
                near = range(max(0, t - window), t + 1)  # itself and `window` before
                scores = np.exp([qh[t] @ k[s] / math.sqrt(e) for s in near])
                out[t, h * e : (h + 1) * e] = (scores / scores.sum()) @ v[list(near)]
        made = {f"attention_block.proj_{name}.weight": value for name, value in W.items()}
        return made | {"attention_block.proj_final.bias": bias}, out @ W["final"].T + bias
    names = {"linear_y": (inner, d), "linear_x": (inner, d), "linear_out": (d, inner)}
    W = {name: rng.standard_normal(shape) / 2 for name, shape in names.items()}
    b = {name: rng.standard_normal(shape[0]) for name, shape in names.items()}
    taps, b_taps, a_param = rng.standard_normal((width, inner)), rng.standard_normal(inner), rng.standard_normal(inner)
    k = inner // heads
    gates = {
        name: (rng.standard_normal((heads, k, k)), rng.standard_normal((heads, k))) for name in ("input_gate", "a_gate")
    }
    gate, u = gelu_tanh(x @ W["linear_y"].T + b["linear_y"]), x @ W["linear_x"].T + b["linear_x"]
    c = (
        np.array([sum(taps[width - 1 - s] * u[t - s] for s in range(min(width, t + 1))) for t in range(len(u))])
        + b_taps
    )
    i_t, r_t = (
        sigmoid(np.concatenate([c[:, h * k : (h + 1) * k] @ w[h] + off[h] for h in range(heads)], -1))
        for w, off in gates.values()
    )
    a = np.exp(-8 * r_t * softplus(a_param))
    state, states = np.zeros(inner), []
    for t in range(len(c)):
        drive = i_t[t] * c[t]
        state = drive if t == 0 else a[t] * state + np.sqrt(1 - a[t] ** 2) * drive
        states.append(state)
    made = {f"recurrent_block.{name}.weight": value for name, value in W.items()}
    made |= {f"recurrent_block.{name}.bias": value for name, value in b.items()}
    made |= {
        "recurrent_block.conv_1d.w": taps,
        "recurrent_block.conv_1d.b": b_taps,
        "recurrent_block.rg_lru.a_param": a_param,
    }
    for name, (w, off) in gates.items():
        made |= {f"recurrent_block.rg_lru.{name}.w": w, f"recurrent_block.rg_lru.{name}.b": off}
    return made, (gate * np.array(states)) @ W["linear_out"].T + b["linear_out"]


def turned(x: np.ndarray) -> np.ndarray:
    """Rotary positions on the first half of a head's entries: entry m turns with m + e / 4 by t 10000^(-2m / (e/2))."""
    e = x.shape[1] // 2
    half, out = e // 2, x.copy()
    for t in range(len(x)):
        for m in range(half):
            angle = t * 10_000.0 ** (-2 * m / e)
            a, b = x[t, m], x[t, m + half]
            out[t, m], out[t, m + half] = (
                a * math.cos(angle) - b * math.sin(angle),
                b * math.cos(angle) + a * math.sin(angle),
            )
    return out


CASES = {
    "s4_dplr": lambda r: s4_block(r, 3, 2, 1, 1, 12, back=False),
    "s4_dplr_tied_rank_2": lambda r: s4_block(r, 4, 2, 2, 2, 9, back=False),
    "s4_dplr_both": lambda r: s4_block(r, 3, 2, 3, 1, 10, back=True),
    "s4_diag": lambda r: s4_block(r, 4, 3, 2, 0, 11, back=False),
    "s4_example": lambda r: s4_example(r, prenorm=False),
    "s4_example_prenorm": lambda r: s4_example(r, prenorm=True),
    "s5": lambda r: one_layer(r, "s5", bilinear=False, back=False),
    "s5_bilinear": lambda r: one_layer(r, "s5", bilinear=True, back=False),
    "s5_both": lambda r: one_layer(r, "s5", bilinear=False, back=True),
    "s5_classifier": lambda r: flax_classifier(r, "s5", batch=False, prenorm=True),
    "lru": lambda r: one_layer(r, "lru"),
    "lru_classifier": lambda r: flax_classifier(r, "lru", batch=True, prenorm=False),
    "mega_both": lambda r: mega_layer(r, back=True, masked=False, laplace=False),
    "mega_unmasked": lambda r: mega_layer(r, back=False, masked=False, laplace=True),
    "mega_masked": lambda r: mega_layer(r, back=False, masked=True, laplace=False),
    "recurrentgemma": recurrentgemma,
}


def made(name: str) -> Arrays:
    return CASES[name](np.random.default_rng(list(CASES).index(name)))


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for case in CASES:
        np.savez_compressed(FOLDER / f"{case}.npz", **made(case))
        print(case)
