"""The size of a recipe."""

from __future__ import annotations

from typing import Literal

Size = Literal["full", "small"]  # as published; on two cores
