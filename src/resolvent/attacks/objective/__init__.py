"""Objectives that attacks maximise, with their gradients."""
