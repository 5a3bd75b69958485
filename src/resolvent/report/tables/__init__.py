"""Tables: rows, columns, tiles, on the page and on a terminal."""
