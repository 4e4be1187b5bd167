"""The command line: one file per command; `main` finds and runs them."""
