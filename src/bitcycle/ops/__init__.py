"""Tensor functions that quantizers share: ranges, rounding, codes, noise, packing. Torch only."""
