"""The kernels in Triton, for CUDA GPUs."""
