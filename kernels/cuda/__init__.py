"""The codec on CUDA tensors: the same frames as on the CPU, byte for byte, on the caller's stream."""
