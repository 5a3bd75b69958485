"""Files of a user's own: tables, arrays, .ts, text."""
