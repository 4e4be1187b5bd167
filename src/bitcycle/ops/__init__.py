"""Passes over tensors that every quantizer needs: ranges, grids, rounding, noise. Torch only."""
