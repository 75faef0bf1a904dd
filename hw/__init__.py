"""The real world: torch executors that are driven by the decision cores of `policies`."""

ENVIRONMENT = {  # of every process that opens torch, set before it does
    "CUDA_DEVICE_ORDER": "PCI_BUS_ID",  # as NVML counts
    "ONEDNN_PRIMITIVE_CACHE_CAPACITY": "16384",  # every key at every batch size is a kernel of its own
}
