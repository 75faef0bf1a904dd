"""The real world: torch executors that are driven by the decision cores of `policies`."""

import os

os.environ["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"  # as NVML counts; another order would read another board's sensor
for _name, _value in {
    "CUDA_DEVICE_MAX_CONNECTIONS": "32",  # torch's number of streams: with 8, lanes would wait for each other
    "OMP_WAIT_POLICY": "PASSIVE",  # threads that spin take cores from other lanes (docs/gpu-measurements.md)
    "ONEDNN_PRIMITIVE_CACHE_CAPACITY": "16384",  # every key at every batch size is a separate kernel
}.items():
    os.environ.setdefault(_name, _value)
