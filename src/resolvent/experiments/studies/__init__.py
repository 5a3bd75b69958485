"""Studies: analyses that train nothing. Each is a function of plain settings that returns `findings`.

A recipe names one by its place here, e.g. "conditioning.before_and_after", with its settings: see `experiments.study`.
"""
