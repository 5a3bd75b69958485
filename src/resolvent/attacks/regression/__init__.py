"""Attacks on models with real outputs, judged by an error tolerance."""
