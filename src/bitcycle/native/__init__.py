"""The native library: C++ with a C interface, and the functions that call it with tensors.

It encodes float tensors and multiplies codes on torch's thread pool. It is built when the package
is installed; without it everything works in plain torch, and slower.
"""
