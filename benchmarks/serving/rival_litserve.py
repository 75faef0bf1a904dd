"""The network behind LitServe, in the rivals' environment: `python -m benchmarks.serving.rival_litserve ...`."""

# No annotations from __future__: LitServe reads a request's annotation to detect that it is binary.
from typing import Annotated, Any

import litserve
import numpy as np
from fastapi import Body

from benchmarks.serving.rival_network import FullWidth, Settings, settings

Binary = Annotated[bytes, Body(media_type="application/octet-stream")]


class Api(litserve.LitAPI):  # type: ignore[misc]
    """API with images in binary, labels in JSON."""

    def __init__(self, options: Settings) -> None:
        super().__init__(max_batch_size=options.batch, batch_timeout=options.wait_s)
        self._options = options

    def setup(self, device: str) -> None:
        """Load the network in each worker."""
        self._network = FullWidth(self._options.model, self._options.take_core())

    def decode_request(self, request: Binary) -> Any:
        """Decode one image."""
        return np.frombuffer(request, np.float32)

    def batch(self, inputs: list[Any]) -> Any:
        """Collate a batch of images."""
        return np.stack(inputs)

    def predict(self, x: Any) -> list[int]:
        """Return a batch's labels."""
        return self._network.labels(x)

    def unbatch(self, output: list[int]) -> list[int]:
        """Return one label each."""
        return output

    def encode_response(self, output: int) -> dict[str, int]:
        """Encode a label as JSON."""
        return {"label": output}


if __name__ == "__main__":
    options = settings()
    server = litserve.LitServer(
        Api(options), accelerator="cpu", workers_per_device=options.workers, timeout=60, fast_queue=options.is_fast
    )
    server.run(host="127.0.0.1", port=options.port, generate_client_file=False, log_level="error", access_log=False)
