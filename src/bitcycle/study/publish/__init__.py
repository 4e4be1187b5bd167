"""A study's finished runs as one small file, and the page that is made from that file alone."""
