"""A client of `slimsched serve` with NVIDIA's own: `pip install 'tritonclient[http]'`.

python ask_triton.py 127.0.0.1:8000 NAME
"""

import sys

import numpy as np
import tritonclient.http as triton

client = triton.InferenceServerClient(sys.argv[1])
name = sys.argv[2]
shape = [1, *client.get_model_metadata(name)["inputs"][0]["shape"][1:]]
image = triton.InferInput("image", shape, "FP32")
image.set_data_from_numpy(np.random.default_rng().random(shape, np.float32))
answer = client.infer(name, [image], timeout=5_000_000)  # microseconds
print("prediction", answer.as_numpy("prediction"), "widths", answer.as_numpy("widths"))
