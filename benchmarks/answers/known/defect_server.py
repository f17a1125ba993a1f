"""Defect detection service: a thread pool answers image requests and keeps an audit trail."""
import argparse
import json
import os
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
import torch.nn as nn

LABELS = ["ok", "scratch", "dent", "stain"]


class DefectNet(nn.Module):
    def __init__(self, width=24):
        super().__init__()
        def stage(cin, cout):
            return nn.Sequential(nn.Conv2d(cin, cout, 3, padding=1), nn.BatchNorm2d(cout), nn.ReLU(), nn.MaxPool2d(2))
        self.stages = nn.Sequential(stage(1, width), stage(width, 2 * width), stage(2 * width, 4 * width))
        self.head = nn.Linear(4 * width, len(LABELS))

    def forward(self, x):
        return self.head(self.stages(x).mean((2, 3)))


class AuditTrail:
    """Keeps the recent decisions of the service for the quality department."""

    def __init__(self, path, history):
        self.path = path
        self.lock = threading.Lock()
        with open(path, "w") as f:
            json.dump({"version": 1, "entries": history}, f)

    def add(self, entry):
        with self.lock:
            with open(self.path) as f:
                trail = json.load(f)
            trail["entries"].append(entry)
            with open(self.path, "w") as f:
                json.dump(trail, f)


class LineAuditTrail(AuditTrail):
    def __init__(self, path, history):
        self.lock = threading.Lock()
        self.file = open(path, "w")
        for entry in history:
            self.file.write(json.dumps(entry) + "\n")

    def add(self, entry):
        with self.lock:
            self.file.write(json.dumps(entry) + "\n")
            self.file.flush()


class Service:
    def __init__(self, trail):
        torch.manual_seed(0)
        self.model = DefectNet().eval()
        self.trail = trail

    def preprocess(self, image):
        x = torch.from_numpy(image).float().div_(255)
        return ((x - x.mean()) / (x.std() + 1e-5))[None, None]

    def handle(self, request):
        t0 = time.perf_counter()
        with torch.inference_mode():
            prob = self.model(self.preprocess(request["image"])).softmax(-1)[0]
        k = int(prob.argmax())
        self.trail.add({"id": request["id"], "camera": request["camera"], "label": LABELS[k],
                        "scores": [round(float(p), 5) for p in prob]})
        return LABELS[k], time.perf_counter() - t0


def make_requests(n, size=96, seed=0):
    rng = np.random.default_rng(seed)
    for i in range(n):
        image = rng.normal(128, 20, (size, size))
        if i % 3 == 0:
            image[rng.integers(size)] += 90
        yield {"id": i, "camera": f"line-{i % 4}", "image": image.clip(0, 255).astype(np.uint8)}


def old_entries(n):
    return [{"id": -k, "camera": f"line-{k % 4}", "label": LABELS[k % 4],
             "scores": [0.25, 0.25, 0.25, 0.25]} for k in range(n, 0, -1)]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--requests", type=int, default=150)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--history", type=int, default=2500)
    parser.add_argument("--mended", action="store_true")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as root:
        cls = LineAuditTrail if args.mended else AuditTrail
        service = Service(cls(os.path.join(root, "audit.json"), old_entries(args.history)))
        t0 = time.perf_counter()
        with ThreadPoolExecutor(args.threads) as pool:
            answers = list(pool.map(service.handle, make_requests(args.requests)))
        wall = time.perf_counter() - t0
    latencies = sorted(t for _, t in answers)
    print(f"{len(answers)} requests in {wall:.2f} s, p50 {1e3 * latencies[len(latencies) // 2]:.1f} ms, "
          f"ok {sum(a == 'ok' for a, _ in answers)}")


if __name__ == "__main__":
    main()
