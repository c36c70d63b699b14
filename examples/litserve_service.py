r"""Serve an adapting model with LitServe, which collects requests into batches.

python examples/litserve_service.py --port 8000 --state tta.safetensors
curl -s localhost:8000/predict -H 'Content-Type: application/json' -d "{\"image\": $IMAGE}"
"""

import argparse
from pathlib import Path

import litserve
import torch
from fastapi import HTTPException

import medbn
from medbn import models


class Service(litserve.LitAPI):
    """One adapter in one process; its state is in a file."""

    def __init__(self, state: Path) -> None:
        super().__init__(max_batch_size=200, batch_timeout=0.05)
        self.state = state

    def setup(self, device: str) -> None:
        """Make the adapter, and continue where the last process was."""
        model = models.get("resnet-small", weights="shipped").to(device)
        self.tta = medbn.adapt(model, method="past", estimator="image_median@0.5")
        if self.state.exists():
            self.tta.load(self.state)

    def decode_request(self, request: dict) -> torch.Tensor:
        """Return the image of a request: (1, 16, 16) values from 0 to 1. Others are refused before they are batched."""
        image = torch.tensor(request["image"], dtype=torch.float32)
        if image.shape != (1, 16, 16) or not bool(((image >= 0) & (image <= 1)).all()):
            raise HTTPException(400, "an image has (1, 16, 16) values from 0 to 1")
        return image

    def predict(self, images: torch.Tensor) -> torch.Tensor:
        """Predict a batch, adapt, and save what has adapted."""
        logits = self.tta(images.to(next(self.tta.parameters()).device))
        self.tta.save(self.state, memory=False)
        return logits

    def encode_response(self, logits: torch.Tensor) -> dict:
        """Return the class of an image."""
        return {"class": int(logits.argmax())}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--state", type=Path, default="tta.safetensors")
    options = parser.parse_args()
    # Workers share no state, so there is one of them.
    server = litserve.LitServer(Service(options.state.absolute()), workers_per_device=1)
    server.run(host="127.0.0.1", port=options.port, generate_client_file=False)
