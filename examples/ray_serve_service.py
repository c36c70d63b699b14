r"""Serve an adapting model with Ray Serve: requests in batches, and a state that outlives a replica.

python examples/ray_serve_service.py --port 8000 --state tta.safetensors
curl -s localhost:8000/ -H 'Content-Type: application/json' -d "{\"image\": $IMAGE}"
"""

import argparse
import os
import signal
from pathlib import Path

import torch
from ray import serve
from starlette.requests import Request
from starlette.responses import JSONResponse

import medbn
from medbn import models


@serve.deployment(num_replicas=1, max_ongoing_requests=400, health_check_period_s=1)
class Service:
    """One adapter in one replica. Replicas share no state: with several, each would adapt to its own requests."""

    def __init__(self, state: str) -> None:
        torch.set_num_threads(1)
        model = models.get("resnet-small", weights="shipped")
        self.tta = medbn.adapt(model, method="past", estimator="image_median@0.5")
        self.state = Path(state)
        if self.state.exists():  # a replica before this one has written it
            self.tta.load(self.state)

    @serve.batch(max_batch_size=200, batch_wait_timeout_s=0.05)
    async def predict(self, images: list[torch.Tensor]) -> list[int]:
        """Predict a batch, adapt, and save what has adapted."""
        logits = self.tta(torch.stack(images))
        self.tta.save(self.state, memory=False)
        return logits.argmax(dim=1).tolist()

    async def __call__(self, request: Request) -> dict | JSONResponse:
        """Answer a request: an image of (1, 16, 16) values from 0 to 1. Others are refused before they join a batch."""
        image = torch.tensor((await request.json())["image"], dtype=torch.float32)
        if image.shape != (1, 16, 16) or not bool(((image >= 0) & (image <= 1)).all()):
            return JSONResponse({"error": "an image has (1, 16, 16) values from 0 to 1"}, status_code=400)
        return {"class": await self.predict(image), "process": os.getpid(), "images": self.tta.memory["images"]}


def start(state: Path, port: int) -> None:
    """Start the service on the loopback interface."""
    serve.start(http_options={"host": "127.0.0.1", "port": port})
    serve.run(Service.bind(str(state.absolute())), name="medbn")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--state", type=Path, default="tta.safetensors")
    options = parser.parse_args()
    start(options.state, options.port)
    print(f"http://127.0.0.1:{options.port}/", flush=True)
    signal.pause()  # until Ctrl-C
