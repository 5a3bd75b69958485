"""Attacks on tokens: a few of them are exchanged for others."""
