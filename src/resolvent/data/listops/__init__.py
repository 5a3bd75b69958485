"""ListOps: nested lists of digits and operators, generated."""
