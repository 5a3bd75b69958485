"""Tasks by name: each reads or makes its data and returns a Task."""
