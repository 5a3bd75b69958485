"""The commands of the program, one file each: a frozen dataclass whose fields are the options, and `execute`.

Heavy imports stay inside `execute`, so that --help is fast.
"""
