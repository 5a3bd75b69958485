"""Escaping of text in files interpreted by other programs, against injection by forged names."""

from __future__ import annotations

FORMULA = ("=", "+", "-", "@", "\t", "\r")  # first characters of spreadsheet formulas


def markdown_text(text: str) -> str:
    """Escape HTML and links; line breaks are kept."""
    for mark, written in (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;"), ("](", "]\\(")):
        text = text.replace(mark, written)
    return text


def markdown_cell(text: str) -> str:
    """The same in one cell of a table."""
    return " ".join(markdown_text(text).replace("|", "\\|").split())


def csv_text(text: str) -> str:
    """A cell that spreadsheets do not treat as a formula."""
    return f"'{text}" if text.startswith(FORMULA) else text
