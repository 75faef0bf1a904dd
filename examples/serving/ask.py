"""A client of `slimsched serve` in Python alone: images as raw numbers, labels and widths back.

python ask.py http://127.0.0.1:8000/v2/models/NAME [TOKEN]
"""

import json
import math
import struct
import sys
from urllib.request import Request, urlopen

url, *token = sys.argv[1:]
headers = {"Authorization": f"Bearer {token[0]}"} if token else {}
with urlopen(Request(url, headers=headers)) as answer:
    shape = json.load(answer)["inputs"][0]["shape"][1:]  # -1, the first, stands for any number of images
many = math.prod(shape)
image = struct.pack(f"<{many}f", *[0.5] * many)  # a grey one

# Triton's binary form: a head in JSON, which shows how many bytes of images follow it.
head = {
    "inputs": [
        {"name": "image", "datatype": "FP32", "shape": [1, *shape], "parameters": {"binary_data_size": len(image)}}
    ],
    "parameters": {"timeout": 5_000_000},  # microseconds
}
text = json.dumps(head).encode()
headers["Inference-Header-Content-Length"] = str(len(text))
with urlopen(Request(f"{url}/infer", text + image, headers)) as answer:
    for output in json.load(answer)["outputs"]:
        print(output["name"], output["data"])
