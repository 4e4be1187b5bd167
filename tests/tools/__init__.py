"""The tools of the repository."""
