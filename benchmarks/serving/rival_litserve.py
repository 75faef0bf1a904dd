"""The network behind LitServe, in the rivals' environment: `python -m benchmarks.serving.rival_litserve ...`."""

# No annotations from __future__: LitServe reads that of a request to find out that it is binary.
from typing import Annotated, Any

import litserve
import numpy as np
from fastapi import Body

from benchmarks.serving.rival_network import FullWidth, Settings, settings

Binary = Annotated[bytes, Body(media_type="application/octet-stream")]


class Api(litserve.LitAPI):  # type: ignore[misc]
    """Images in binary, labels in JSON."""

    def __init__(self, given: Settings) -> None:
        super().__init__(max_batch_size=given.batch, batch_timeout=given.wait_s)
        self._given = given

    def setup(self, device: str) -> None:
        """In each worker."""
        self._network = FullWidth(self._given.model, self._given.take_core())

    def decode_request(self, request: Binary) -> Any:
        """One image."""
        return np.frombuffer(request, np.float32)

    def batch(self, inputs: list[Any]) -> Any:
        """Of them all."""
        return np.stack(inputs)

    def predict(self, x: Any) -> list[int]:
        """Their labels."""
        return self._network.labels(x)

    def unbatch(self, output: list[int]) -> list[int]:
        """One each."""
        return output

    def encode_response(self, output: int) -> dict[str, int]:
        """As JSON."""
        return {"label": output}


if __name__ == "__main__":
    given = settings()
    server = litserve.LitServer(
        Api(given), accelerator="cpu", workers_per_device=given.workers, timeout=60, fast_queue=given.is_fast
    )
    server.run(host="127.0.0.1", port=given.port, generate_client_file=False, log_level="error", access_log=False)
