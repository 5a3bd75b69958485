"""Blocks with a Lipschitz constant by construction."""
