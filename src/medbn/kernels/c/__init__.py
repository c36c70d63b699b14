"""The kernels in C, for float32 on a CPU."""
