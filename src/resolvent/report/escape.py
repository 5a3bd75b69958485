"""Text of records in files that other programs interpret: a forged name must stay a name."""

from __future__ import annotations

FORMULA = ("=", "+", "-", "@", "\t", "\r")  # how a cell begins that a spreadsheet computes


def markdown_text(text: str) -> str:
    """No HTML and no links out of text; line breaks stay."""
    for mark, written in (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;"), ("](", "]\\(")):
        text = text.replace(mark, written)
    return text


def markdown_cell(text: str) -> str:
    """The same in one cell of a table."""
    return " ".join(markdown_text(text).replace("|", "\\|").split())


def csv_text(text: str) -> str:
    """A cell that no spreadsheet takes for a formula."""
    return f"'{text}" if text.startswith(FORMULA) else text
