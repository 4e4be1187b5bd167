"""Measured results as committed pages: every page and picture is made from one small file."""
