"""Where the rows of a table live."""
