"""A small reader of PNG images: eight-bit grey, not interlaced, as the Long Range Arena stores Pathfinder."""

from __future__ import annotations

import zlib

import numpy as np

SIGNATURE = b"\x89PNG\r\n\x1a\n"
_LARGEST = 1 << 14  # pixels per side


def read_png(data: bytes, where: str = "png") -> np.ndarray:
    """(height, width) uint8. Sizes and checksums are verified before anything is unpacked."""
    if data[:8] != SIGNATURE:
        raise ValueError(f"{where}: expected a PNG picture, got {data[:8]!r}.")
    header, packed = b"", b""
    for kind, body in _chunks(data, where):
        if kind == b"IHDR":
            header = body
        elif kind == b"IDAT":
            packed += body
    width, height = (int.from_bytes(header[i : i + 4], "big") for i in (0, 4))
    if len(header) != 13 or header[8:10] != b"\x08\x00" or header[12] or not 0 < width <= _LARGEST >= height > 0:
        raise ValueError(f"{where}: expected eight-bit grey, not interlaced, got the header {header.hex()}.")
    size = height * (width + 1)
    raw = zlib.decompressobj().decompress(packed, size + 1)
    if len(raw) != size:
        raise ValueError(f"{where}: expected {size} bytes of pixels, got {len(raw)}.")
    return _unfilter(np.frombuffer(raw, np.uint8).reshape(height, width + 1), where)


def _chunks(data: bytes, where: str) -> list[tuple[bytes, bytes]]:
    found, place = [], 8
    while place + 12 <= len(data):
        size, kind = int.from_bytes(data[place : place + 4], "big"), data[place + 4 : place + 8]
        body, check = data[place + 8 : place + 8 + size], data[place + 8 + size : place + 12 + size]
        if len(check) != 4 or zlib.crc32(kind + body) != int.from_bytes(check, "big"):
            raise ValueError(f"{where}: the chunk {kind!r} is damaged.")
        found.append((kind, body))
        place += 12 + size
    return found


def _unfilter(rows: np.ndarray, where: str) -> np.ndarray:
    image = np.zeros((len(rows), rows.shape[1] - 1), dtype=np.uint8)
    above = np.zeros(image.shape[1], dtype=np.uint8)
    for y, row in enumerate(rows):
        filter_, line = int(row[0]), row[1:]
        if filter_ == 0:
            image[y] = line
        elif filter_ == 1:
            image[y] = np.cumsum(line, dtype=np.uint8)
        elif filter_ == 2:
            image[y] = line + above
        elif filter_ in (3, 4):
            image[y] = _unfilter_line(line.tolist(), above.tolist(), filter_)
        else:
            raise ValueError(f"{where}: line {y} has the unknown filter {filter_}.")
        above = image[y]
    return image


def _unfilter_line(line: list[int], above: list[int], filter_: int) -> list[int]:
    """Filters 3 (mean) and 4 (Paeth), where each pixel needs the one before it."""
    out, left, corner = [], 0, 0
    for value, up in zip(line, above, strict=True):
        guess = (left + up) // 2 if filter_ == 3 else _paeth(left, up, corner)
        left, corner = (value + guess) & 255, up
        out.append(left)
    return out


def _paeth(left: int, up: int, corner: int) -> int:
    guess = left + up - corner
    return min((left, up, corner), key=lambda c: abs(guess - c))
