"""Figures, for the page and for print."""
