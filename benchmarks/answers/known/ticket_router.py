"""Serve a text classifier that routes support tickets to teams.

The server answers requests from a pool of threads.  A client in the same
process sends tickets and counts how many went to each team.
"""
import argparse
import os
import statistics
import tempfile
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import nn

TEAMS = ["billing", "shipping", "returns", "accounts", "technical", "other"]
VOCABULARY = 4000


class TicketClassifier(nn.Module):
    def __init__(self, dim=96, layers=3, heads=4, max_length=256):
        super().__init__()
        self.words = nn.Embedding(VOCABULARY, dim)
        self.positions = nn.Embedding(max_length, dim)
        layer = nn.TransformerEncoderLayer(dim, heads, 4 * dim, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.teams = nn.Linear(dim, len(TEAMS))

    def forward(self, tokens):
        x = self.words(tokens) + self.positions.weight[: tokens.shape[1]]
        return self.teams(self.encoder(x).mean(1))


def hash_words(text):
    """Token ids by a hash that is the same in every run."""
    ids = []
    for word in text.lower().split():
        value = 0
        for character in word:
            value = (value * 31 + ord(character)) % 1_000_003
        ids.append(value % VOCABULARY)
    return torch.tensor([ids])


class RoutingService:
    """Answers requests for the team that has to deal with a ticket."""

    def __init__(self, weights_path, workers, keep_model=False):
        self.weights_path = weights_path
        self.pool = ThreadPoolExecutor(workers, thread_name_prefix="router")
        self.seconds = []
        self.lock = threading.Lock()
        self.model = self.load_model() if keep_model else None

    def load_model(self):
        model = TicketClassifier()
        state = torch.load(self.weights_path, map_location="cpu", weights_only=True)
        model.load_state_dict(state)
        return model.eval()

    def handle(self, text):
        start = time.perf_counter()
        model = self.model if self.model is not None else self.load_model()
        with torch.inference_mode():
            team = int(model(hash_words(text)).argmax(-1))
        with self.lock:
            self.seconds.append(time.perf_counter() - start)
        return TEAMS[team]

    def submit(self, text):
        return self.pool.submit(self.handle, text)

    def close(self):
        self.pool.shutdown()


def write_tickets(count, words, seed=27):
    generator = torch.Generator().manual_seed(seed)
    numbers = torch.randint(0, 5000, (count, words), generator=generator)
    return [" ".join(f"word{n}" for n in row) for row in numbers.tolist()]


def run_client(service, tickets, in_flight):
    """Send the tickets with at most `in_flight` open requests."""
    routed = Counter()
    for begin in range(0, len(tickets), in_flight):
        answers = [service.submit(text) for text in tickets[begin:begin + in_flight]]
        routed.update(answer.result() for answer in answers)
    return routed


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=800)
    parser.add_argument("--words", type=int, default=160)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--mended", action="store_true")
    args = parser.parse_args()
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "router.pt")
        torch.save(TicketClassifier().state_dict(), path)
        service = RoutingService(path, args.workers, keep_model=args.mended)
        start = time.perf_counter()
        routed = run_client(service, write_tickets(args.requests, args.words), 2 * args.workers)
        service.close()
    seconds = time.perf_counter() - start
    print(f"{args.requests / seconds:.1f} requests/s, "
          f"median {1000 * statistics.median(service.seconds):.1f} ms")
    print(", ".join(f"{team} {routed[team]}" for team in TEAMS))


if __name__ == "__main__":
    main()
