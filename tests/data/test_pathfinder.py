"""Pathfinder: the drawn contours obey the rules, labels tell the truth, and pictures do not depend on the batch."""

from __future__ import annotations

import importlib.util
import sys
import zlib
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from resolvent.data import load_task
from resolvent.data.pathfinder.png import SIGNATURE, read_png
from resolvent.data.pathfinder.render import lanczos, reduce, render
from resolvent.data.pathfinder.shape import Grown, Shape, circle, shape32, shape128


@pytest.fixture(scope="module")
def slow_snakes() -> Any:
    """The same functions in plain Python: compiling them takes longer than a few pictures."""
    kept = sys.modules.get("numba")
    sys.modules["numba"] = None  # type: ignore[assignment]
    spec = importlib.util.find_spec("resolvent.data.pathfinder.snakes")
    assert spec is not None
    assert spec.loader is not None
    module: ModuleType = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    finally:
        if kept is None:
            del sys.modules["numba"]
        else:
            sys.modules["numba"] = kept
    return module


@pytest.fixture(scope="module")
def easy(slow_snakes: Any) -> Grown:
    grown: Grown = slow_snakes.grow(shape32(6), 0, 0, 12)
    return grown


def snakes_of(shape: Shape, dashes: np.ndarray) -> list[np.ndarray]:
    """The dashes of each snake of one picture."""
    long = dashes[: 2 * shape.segments]
    rest = dashes[2 * shape.segments :].reshape(-1, shape.few, 4)
    return [long[0::2], long[1::2], *(snake for snake in rest if np.isfinite(snake).all())]


def test_dashes_follow_one_another(easy: Grown) -> None:
    """From head to head a snake moves on by at most two radii and a gap, and turns by less than a right angle."""
    shape = shape32(6)
    for dashes in easy.dashes:
        for snake in snakes_of(shape, dashes):
            along = snake[:, 2:] - snake[:, :2]
            size = np.linalg.norm(along, axis=1)
            assert abs(size - shape.paddle).max() <= 1  # the first dash is rounded to pixels
            step = np.linalg.norm(np.diff(snake[:, 2:], axis=0), axis=1)
            assert step.max() <= shape.paddle + 2 * shape.margins[0] + 2
            turn = (along[1:] * along[:-1]).sum(1) / (size[1:] * size[:-1])
            assert turn.min() > -0.35  # a right angle from the pivot, seen between rounded ends


def test_dashes_keep_apart(easy: Grown) -> None:
    """No dash comes within a margin of one that is not its neighbour in the same snake."""
    shape = shape32(6)
    for dashes in easy.dashes:
        parts = snakes_of(shape, dashes)
        labelled = [(s, k, dash) for s, snake in enumerate(parts) for k, dash in enumerate(snake)]
        for i, (s, k, a) in enumerate(labelled):
            for t, m, b in labelled[:i]:
                if s != t or abs(k - m) > 1:
                    assert distance(a, b) > shape.margins[0]


def distance(a: np.ndarray, b: np.ndarray) -> float:
    """Between two dashes, on a fine grid of points."""
    share = np.linspace(0, 1, 25)[:, None]
    points = [dash[:2] + share * (dash[2:] - dash[:2]) for dash in (a, b)]
    return float(np.linalg.norm(points[0][:, None] - points[1][None], axis=-1).min())


def test_discs_lie_on_ends_and_tell_the_label(easy: Grown) -> None:
    assert set(easy.label) == {0, 1}
    for dashes, discs, label in zip(easy.dashes, easy.discs, easy.label, strict=True):
        long = snakes_of(shape32(6), dashes)[:2]
        starts = [i for i, snake in enumerate(long) if np.array_equal(snake[0, :2], discs[0])]
        ends = [i for i, snake in enumerate(long) if np.array_equal(snake[-1, 2:], discs[1])]
        assert len(starts) == len(ends) == 1
        assert label == (starts == ends)


def test_seeds_lie_seven_apart(easy: Grown) -> None:
    gap = np.linalg.norm(easy.dashes[:, 0, :2] - easy.dashes[:, 1, :2], axis=1)
    assert abs(gap - 7).max() < 0.8  # rounded to pixels


def test_a_picture_follows_from_its_number_alone(slow_snakes: Any, easy: Grown) -> None:
    other = slow_snakes.grow(shape32(6), 0, 5, 3)
    assert np.array_equal(other.dashes, easy.dashes[5:8], equal_nan=True)
    assert np.array_equal(other.label, easy.label[5:8])
    assert not np.array_equal(slow_snakes.grow(shape32(6), 1, 5, 3).dashes, other.dashes, equal_nan=True)


@pytest.mark.slow
def test_compiled_and_plain_agree(slow_snakes: Any) -> None:
    pytest.importorskip("numba", reason="the compiled path needs it")
    from resolvent.data.pathfinder import snakes

    for shape, count in ((shape32(14), 6), (shape128(9), 3)):
        fast, slow = snakes.grow(shape, 7, 0, count), slow_snakes.grow(shape, 7, 0, count)
        assert np.array_equal(fast.dashes, slow.dashes, equal_nan=True)
        assert np.array_equal(fast.label, slow.label)


def test_pictures_show_what_was_grown(easy: Grown) -> None:
    images = render(shape32(6), easy)
    assert images.shape == (12, 32, 32)
    assert images.dtype == np.uint8
    for image, discs, dashes in zip(images, easy.discs, easy.dashes, strict=True):
        for y, x in discs.astype(int):
            assert image[y, x] > 240
        middle = np.rint((dashes[0::2, :2] + dashes[0::2, 2:]) / 2)
        lit = [image[int(y) - 1 : int(y) + 2, int(x) - 1 : int(x) + 2].max() for y, x in middle if np.isfinite(y)]
        assert min(lit) > 100
        assert (image == 0).mean() > 0.4  # a dark ground


def test_the_circle_has_its_radius() -> None:
    for radius in (3, 7, 8):
        cells, angles = circle(radius)
        assert len(np.unique(cells, axis=0)) == len(cells)
        assert abs(np.hypot(*(cells + 0.5).T) - radius).max() < 1
        assert np.allclose(np.hypot(*cells.T) * np.sin(angles), cells[:, 0])


def test_lanczos_equals_another_program() -> None:
    image = pytest.importorskip("PIL.Image", reason="Pillow is the other program")
    rng = np.random.default_rng(0)
    large = rng.random((2, 64, 64)).astype(np.float32)
    want = [np.asarray(image.fromarray(one).resize((32, 32), image.Resampling.LANCZOS)) for one in large]
    assert np.abs(reduce(large) - np.stack(want)).max() < 1e-5
    assert np.allclose(lanczos(32).sum(1), 1)


def test_as_a_task(own_folder: Path, slow_snakes: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "resolvent.data.pathfinder.snakes", slow_snakes)
    task = load_task("pathfinder", segments=6, samples=(6, 2, 2))
    assert [len(split) for split in task.splits().values()] == [6, 2, 2]
    assert (task.length, task.channels, task.classes, task.bounds) == (1024, 1, 2, (0.0, 1.0))
    assert "generated from seed 0" in task.notes[0]
    packed = load_task("pathfinder", segments=6, samples=(6, 2, 2), packed=True)
    assert packed.train.x.element_size() == 1
    assert packed.train.unpack().x.equal(task.train.x)
    centred = [load_task("pathfinder", segments=6, samples=(6, 2, 2), packed=p, normalise=True) for p in (True, False)]
    assert [own.bounds for own in centred] == [(-1.0, 1.0)] * 2
    some = torch.tensor([4, 0])
    for own in centred:
        x = own.train.to("cpu").select(some).x
        assert x.equal((task.train.x[some] - 0.5) / 0.5)  # what the published loader computes
        assert own.train.to("cpu", torch.float64).select(some).x.equal(x.double())
    with pytest.raises(ValueError, match="6, 9 or 14, got 7"):
        load_task("pathfinder", segments=7)


# -- the arena's own files ---------------------------------------------------------------------------------------------


def write_png(image: np.ndarray, filters: list[int]) -> bytes:
    """An encoder of our own for the tests: every filter type, line by line."""

    def paeth(a: int, b: int, c: int) -> int:
        p = a + b - c
        pa, pb, pc = abs(p - a), abs(p - b), abs(p - c)
        return a if pa <= pb and pa <= pc else b if pb <= pc else c

    raw, above = b"", [0] * image.shape[1]
    for row, kind in zip(image.tolist(), filters, strict=True):
        left = [0, *row[:-1]]
        corner = [0, *above[:-1]]
        guess = {
            0: [0] * len(row),
            1: left,
            2: above,
            3: [(a + b) // 2 for a, b in zip(left, above, strict=True)],
            4: [paeth(*v) for v in zip(left, above, corner, strict=True)],
        }[kind]
        raw += bytes([kind, *((v - g) % 256 for v, g in zip(row, guess, strict=True))])
        above = row
    chunks = [(b"IHDR", b"".join(n.to_bytes(4, "big") for n in image.shape[::-1]) + b"\x08\0\0\0\0")]
    chunks += [(b"IDAT", zlib.compress(raw)), (b"IEND", b"")]
    body = (len(d).to_bytes(4, "big") + k + d + zlib.crc32(k + d).to_bytes(4, "big") for k, d in chunks)
    return SIGNATURE + b"".join(body)


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 9), st.integers(1, 9), st.data())
def test_png_round_trip(height: int, width: int, data: st.DataObject) -> None:
    pixels = data.draw(st.binary(min_size=height * width, max_size=height * width))
    filters = data.draw(st.lists(st.integers(0, 4), min_size=height, max_size=height))
    image = np.frombuffer(pixels, np.uint8).reshape(height, width)
    assert np.array_equal(read_png(write_png(image, filters)), image)


def test_png_of_another_program(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image", reason="Pillow is the other program")
    pixels = np.random.default_rng(0).integers(0, 256, (32, 32)).astype(np.uint8)
    image.fromarray(pixels).save(tmp_path / "a.png")
    assert np.array_equal(read_png((tmp_path / "a.png").read_bytes()), pixels)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 90), st.integers(0, 255))
def test_a_damaged_png_is_refused_or_unchanged(place: int, value: int) -> None:
    image = np.arange(64, dtype=np.uint8).reshape(8, 8)
    data = bytearray(write_png(image, [0] * 8))
    data[place % len(data)] = value
    try:
        found = read_png(bytes(data))
    except ValueError:
        return
    assert np.array_equal(found, image)


def test_the_arenas_pictures(own_folder: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"pathfinder32/curv_contour_length_14.*RESOLVENT_DATA"):
        load_task("pathfinder", official=True)
    folder = own_folder / "lra_release" / "pathfinder32" / "curv_contour_length_14"
    (folder / "imgs" / "0").mkdir(parents=True)
    (folder / "metadata").mkdir()
    lines = []
    for i in range(20):
        (folder / "imgs" / "0" / f"sample_{i}.png").write_bytes(write_png(np.full((32, 32), i, np.uint8), [1] * 32))
        lines.append(f"imgs/0 sample_{i}.png {i} {i % 2} 1.0 14 4 2 0.5 1 1\n")
    (folder / "metadata" / "0.npy").write_text("".join(lines))
    task = load_task("pathfinder", official=True)
    assert [len(split) for split in task.splits().values()] == [16, 2, 2]
    for split in task.splits().values():
        assert ((split.x[:, 0, 0] * 255).round().long() % 2).equal(split.y)


@pytest.mark.parametrize("line", ["imgs/0 a.png 0", "imgs/0 a.png 0 2 x", "../.. a.png 0 1 x", "/etc passwd 0 1 x"])
def test_a_wrong_list_names_its_line(own_folder: Path, line: str) -> None:
    folder = own_folder / "pathfinder32" / "curv_contour_length_14" / "metadata"
    folder.mkdir(parents=True)
    (folder / "0.npy").write_text(line + "\n")
    with pytest.raises(ValueError, match=r"0\.npy, line 1"):
        load_task("pathfinder", official=True)
