"""Snakes of dashes for Pathfinder, one image at a time; compiled if numba is installed, otherwise slow Python.

From the pivot and the direction of the last dash the next pivot lies length + 2 margin ahead; the next dash ends on a
pixel of the circle of radius length + margin around it, drawn with weight cos^2(min(continuity * angle, pi / 2)) among
those that the mask leaves free, and is the last `length` of that radius. A dash whose surroundings (margin on all
sides) overlap those of an older one is redrawn, twice at most. A snake in a dead end drops its last few dashes and
continues from there; the published program restarts the image, which here would take about a thousand tries.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from resolvent.data.pathfinder.shape import ROLLS, Grown, Shape, circle, rolls
from resolvent.runtime.compiled import jit_compile

_NOWHERE = np.full(4, -1e6)  # a dash far from everything
_TRIALS = 3  # per dash
_ATTEMPTS = 5  # per distractor
_BACK = 4  # most dashes dropped in a dead end
_PATIENCE = 20  # dashes tried, in multiples of those wanted, before the image is restarted


class Rule(NamedTuple):
    side: int
    paddle: int
    apart: int
    segments: int
    distractors: int
    few: int
    margin: int
    continuity: float
    cells: np.ndarray  # (k, 2): pixels of the circle
    angles: np.ndarray  # (k,)


class Board(NamedTuple):
    """One image. All arrays are modified in place."""

    taken: np.ndarray  # (2, side, side): number of dashes within one margin of a pixel, and within two
    dashes: np.ndarray  # (k, 4): y, x of tail and head
    state: np.ndarray  # (k, 3): pivot and direction of each dash
    u: np.ndarray  # (ROLLS,)
    used: np.ndarray  # (1,): number of them used


def grow(shape: Shape, seed: int, first: int, count: int) -> Grown:
    """Images with index first .. first + count - 1; the few that ran out of random numbers are left out."""
    total = 2 * shape.segments + shape.distractors * shape.few
    dashes, discs = np.full((count, total, 4), np.nan), np.zeros((count, 2, 2))
    label = np.zeros(count, dtype=np.int64)
    u = rolls(seed, first, count)
    margin = np.array(shape.margins)[(u[:, 0] * len(shape.margins)).astype(int)]
    sizes = (shape.side, shape.paddle, shape.apart, shape.segments, shape.distractors, shape.few)
    for value in shape.margins:
        rule = Rule(*sizes, value, shape.continuity, *circle(shape.paddle + value))
        grow_all(np.nonzero(margin == value)[0], rule, u, dashes, discs, label)
    done = label >= 0
    return Grown(dashes[done], discs[done], label[done].astype(np.uint8))


@jit_compile
def grow_all(
    rows: np.ndarray, rule: Rule, u: np.ndarray, dashes: np.ndarray, discs: np.ndarray, label: np.ndarray
) -> None:
    """Fill dashes, discs and label of `rows`; label -1: discarded."""
    for row in rows:
        taken = np.zeros((2, rule.side, rule.side), np.int16)
        state = np.zeros((dashes.shape[1], 3))
        board = Board(taken, dashes[row], state, u[row], np.array([1]))  # the first number chose the margin
        label[row] = grow_one(rule, board, discs[row])


@jit_compile
def grow_one(rule: Rule, board: Board, discs: np.ndarray) -> int:
    """The long snakes, dashes alternating; then the discs on their ends, and the distractors. Returns the label."""
    wanted = 2 * rule.segments
    n, tried = 0, 0
    while n < wanted:
        if board.used[0] > ROLLS - 64:
            return -1
        if n < 2 or tried >= _PATIENCE * wanted:
            n, tried = sow_two(rule, board), 0
        elif extend(n, n - 2, rule, board):
            n += 1
        else:
            back = min(n - 2, 1 + int(_BACK * roll(board)))
            for k in range(n - back, n):
                stamp(board.taken, board.dashes[k], rule, -1)
            n -= back
        tried += 1
    start, same = int(2 * roll(board)), int(2 * roll(board))
    end = start if same == 1 else 1 - start
    discs[0], discs[1] = board.dashes[start, :2], board.dashes[wanted - 2 + end, 2:]
    for k in range(rule.distractors):
        distract(wanted + k * rule.few, rule, board)
    return same


@jit_compile
def sow_two(rule: Rule, board: Board) -> int:
    """A fresh image with the first dashes of both snakes, `apart` from one another; 2, or 0 when they do not fit."""
    last = rule.side - 1
    board.taken[:] = 0
    board.taken[:, 0] = 1
    board.taken[:, last] = 1
    board.taken[:, :, 0] = 1
    board.taken[:, :, last] = 1
    wide = rule.side - 4 * rule.apart
    y = math.floor(2 * rule.apart + wide * roll(board))
    x = math.floor(2 * rule.apart + wide * roll(board))
    turn = 2 * math.pi * roll(board)
    there = (np.rint(y + rule.apart * math.sin(turn)), np.rint(x + rule.apart * math.cos(turn)))
    if not sow(0, y, x, rule, board):
        return 0
    return 2 if sow(1, there[0], there[1], rule, board) else 0


@jit_compile
def distract(first: int, rule: Rule, board: Board) -> None:
    """A shorter snake anywhere, as dashes first .. first + few - 1; NaN if every attempt fails."""
    for _ in range(_ATTEMPTS):
        if board.used[0] > ROLLS - 64:
            break
        y, x = free_pixel(board)
        n = 0
        if sow(first, y, x, rule, board):
            n = 1
            while n < rule.few and extend(first + n, first + n - 1, rule, board):
                n += 1
        if n == rule.few:
            return
        for k in range(first, first + n):
            stamp(board.taken, board.dashes[k], rule, -1)
    board.dashes[first : first + rule.few] = np.nan


@jit_compile
def free_pixel(board: Board) -> tuple[int, int]:
    """A random pixel with no dash within two margins; the corner if there is none."""
    free = np.nonzero(board.taken[1] == 0)
    share = roll(board)
    if len(free[0]) == 0:
        return 0, 0
    k = int(share * len(free[0]))
    return free[0][k], free[1][k]


@jit_compile
def sow(n: int, y: float, x: float, rule: Rule, board: Board) -> bool:
    """Dash n as the first of a snake, from (y, x) in a random direction; whether it fits."""
    angle = 2 * math.pi * roll(board)
    dy, dx = math.sin(angle), math.cos(angle)
    dash, state = board.dashes[n], board.state[n]
    dash[0], dash[1] = y, x
    dash[2], dash[3] = np.rint(y + rule.paddle * dy), np.rint(x + rule.paddle * dx)
    state[0], state[1], state[2] = np.rint(y - rule.margin * dy), np.rint(x - rule.margin * dx), angle
    good = fits(board.taken, dash, rule, _NOWHERE)
    if good:
        stamp(board.taken, dash, rule, 1)
    return good


@jit_compile
def extend(n: int, last: int, rule: Rule, board: Board) -> bool:
    """Place dash n after dash `last`, which does not block it; returns whether there is room."""
    ahead, angle = rule.paddle + 2 * rule.margin, board.state[last, 2]
    py = np.rint(board.state[last, 0] + ahead * math.sin(angle))
    px = np.rint(board.state[last, 1] + ahead * math.cos(angle))
    weight = weights(py, px, angle, rule, board.taken, board.dashes[last])
    for _ in range(_TRIALS):
        pick = draw(weight, roll(board))
        if pick < 0:
            return False
        place(n, py, px, pick, rule, board)
        if fits(board.taken, board.dashes[n], rule, board.dashes[last]):
            stamp(board.taken, board.dashes[n], rule, 1)
            return True
    return False


@jit_compile
def place(n: int, py: float, px: float, pick: int, rule: Rule, board: Board) -> None:
    """Dash n towards that pixel of the circle around (py, px)."""
    dash, state, angle = board.dashes[n], board.state[n], rule.angles[pick]
    dash[2], dash[3] = py + rule.cells[pick, 0], px + rule.cells[pick, 1]
    dash[0], dash[1] = dash[2] - rule.paddle * math.sin(angle), dash[3] - rule.paddle * math.cos(angle)
    state[0], state[1], state[2] = py, px, angle


@jit_compile
def weights(py: float, px: float, angle: float, rule: Rule, taken: np.ndarray, last: np.ndarray) -> np.ndarray:
    """Weights of the pixels on the circle around the pivot: zero outside the image and near dashes but the last."""
    out = np.zeros(len(rule.angles))
    for k in range(len(rule.angles)):
        y, x = int(py + rule.cells[k, 0]), int(px + rule.cells[k, 1])
        if 0 <= y < rule.side and 0 <= x < rule.side:
            turn = abs(rule.angles[k] - angle) % (2 * math.pi)
            turn = min(turn, 2 * math.pi - turn) * rule.continuity
            if turn < math.pi / 2 and others(taken[1, y, x], y, x, last, 4 * rule.margin**2) == 0:
                out[k] = math.cos(turn) ** 2
    return out


@jit_compile
def others(count: int, y: int, x: int, last: np.ndarray, reach: float) -> int:
    """The number of dashes near a pixel, excluding the last one."""
    return count - 1 if count > 0 and squared_distance(y, x, last) <= reach else count


@jit_compile
def draw(weight: np.ndarray, share: float) -> int:
    """The index at which the cumulative sum passes that share of the total; -1 if all weights are zero."""
    total = 0.0
    for k in range(len(weight)):
        total += weight[k]
    if total < 1e-4:
        return -1
    running = 0.0
    for k in range(len(weight)):
        running += weight[k]
        if running > share * total:
            return k
    return -1


@jit_compile
def fits(taken: np.ndarray, dash: np.ndarray, rule: Rule, last: np.ndarray) -> bool:
    """Whether a dash is inside the image and its surroundings overlap those of no dash but the last."""
    for value in dash:
        if value < 0 or value > rule.side - 1:
            return False
    reach = rule.margin + rule.paddle // 2 + 2
    cy, cx = int((dash[0] + dash[2]) / 2), int((dash[1] + dash[3]) / 2)
    for y in range(max(0, cy - reach), min(rule.side, cy + reach + 1)):
        for x in range(max(0, cx - reach), min(rule.side, cx + reach + 1)):
            near = taken[0, y, x] > 0 and squared_distance(y, x, dash) <= rule.margin**2
            if near and others(taken[0, y, x], y, x, last, rule.margin**2) > 0:
                return False
    return True


@jit_compile
def stamp(taken: np.ndarray, dash: np.ndarray, rule: Rule, sign: int) -> None:
    """Add a dash to the counts, or remove it."""
    reach = 2 * rule.margin + rule.paddle // 2 + 2
    cy, cx = int((dash[0] + dash[2]) / 2), int((dash[1] + dash[3]) / 2)
    for y in range(max(0, cy - reach), min(rule.side, cy + reach + 1)):
        for x in range(max(0, cx - reach), min(rule.side, cx + reach + 1)):
            distance = squared_distance(y, x, dash)
            if distance <= rule.margin**2:
                taken[0, y, x] += sign
            if distance <= 4 * rule.margin**2:
                taken[1, y, x] += sign


@jit_compile
def squared_distance(y: int, x: int, dash: np.ndarray) -> float:
    """Squared distance of a pixel from a dash."""
    ay, ax = dash[2] - dash[0], dash[3] - dash[1]
    oy, ox = y - dash[0], x - dash[1]
    share = min(1.0, max(0.0, (oy * ay + ox * ax) / max(ay * ay + ax * ax, 1e-9)))
    return (oy - share * ay) ** 2 + (ox - share * ax) ** 2


@jit_compile
def roll(board: Board) -> float:
    board.used[0] += 1
    return board.u[board.used[0] - 1]
