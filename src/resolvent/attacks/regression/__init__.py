"""Attacks on models with real outputs, judged by an error that may not be exceeded."""
