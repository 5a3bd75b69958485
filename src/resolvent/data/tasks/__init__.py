"""Tasks by name: each reads or generates its data and returns a Task."""
