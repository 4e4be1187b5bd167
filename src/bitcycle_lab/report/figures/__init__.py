"""One file per kind of picture."""
