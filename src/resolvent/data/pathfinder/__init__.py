"""Pathfinder: are two discs joined by a dashed path? Generated, or read from the published files."""
