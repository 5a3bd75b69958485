"""Attacks on tokens: a few of them are replaced by others."""
