"""Studies that come with the package, by name: a file registers what it holds in `STUDIES`."""
