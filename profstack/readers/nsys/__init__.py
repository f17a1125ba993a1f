"""Read what NVIDIA Nsight Systems recorded, and join it to steps."""
