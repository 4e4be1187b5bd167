"""Studies: many runs and the question they answer."""
