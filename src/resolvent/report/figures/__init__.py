"""Figures: what they show, drawn on the page and for print."""
