"""Studies: analyses without training. Each is a function of plain settings that returns `findings`.

A recipe names one by its path here, e.g. "conditioning.before_and_after", with its settings: see `experiments.study`.
"""
