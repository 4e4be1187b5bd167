"""What `bitcycle cost`, `plan` and `compare` do: price recipes by name, compare runs on disk."""
