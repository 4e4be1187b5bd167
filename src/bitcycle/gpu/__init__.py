"""Rounding on GPUs: Triton kernels for what `bitcycle.native` does on the CPU.

No file here but `driver` may be imported where Triton is missing; `ops.fused` decides.
"""
