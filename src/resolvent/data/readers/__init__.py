"""Readers of user files: tables, arrays, .ts, text."""
