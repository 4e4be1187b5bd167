"""The command line: one file per command, found by `bitcycle.cli.main`."""
