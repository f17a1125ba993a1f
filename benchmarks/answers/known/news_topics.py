"""Topic classification of short articles with an averaged-embedding + attention model."""
import argparse
from collections import Counter

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader

SYLLABLES = ["ka", "re", "mo", "ti", "su", "lan", "der", "vi", "pol", "gra", "ne", "shi", "bor", "ex", "um"]


def synth_articles(n_articles, n_words, n_topics, length, seed=0):
    rng = np.random.default_rng(seed)
    lexicon = np.array(sorted({"".join(rng.choice(SYLLABLES, rng.integers(2, 6))) for _ in range(2 * n_words)}))
    rng.shuffle(lexicon)
    lexicon = lexicon[:n_words]
    topics = rng.integers(0, n_topics, n_articles)
    general = (n_words * rng.random((n_articles, length)) ** 1.3).astype(int)
    special = (topics[:, None] * 97 + rng.integers(0, 60, (n_articles, length))) % n_words
    pick = np.where(rng.random((n_articles, length)) < 0.2, special, general)
    return [" ".join(row) for row in lexicon[pick]], topics


class Vocab:
    PAD, UNK = 0, 1

    def __init__(self, texts, max_size):
        counts = Counter(tok for text in texts for tok in text.split())
        self.itos = ["<pad>", "<unk>"] + [w for w, _ in counts.most_common(max_size)]

    def __len__(self):
        return len(self.itos)

    def lookup(self, token):
        if token in self.itos:
            return self.itos.index(token)
        return self.UNK

    def encode(self, text):
        return [self.lookup(tok) for tok in text.split()]


class HashedVocab(Vocab):
    def __init__(self, texts, max_size):
        super().__init__(texts, max_size)
        self.stoi = {w: i for i, w in enumerate(self.itos)}

    def lookup(self, token):
        return self.stoi.get(token, self.UNK)


def collate(rows):
    ids, labels = zip(*rows)
    return nn.utils.rnn.pad_sequence(ids, batch_first=True), torch.tensor(labels)


class TopicNet(nn.Module):
    def __init__(self, vocab_size, n_topics, dim=96):
        super().__init__()
        self.emb = nn.Embedding(vocab_size, dim, padding_idx=0)
        self.attn = nn.TransformerEncoderLayer(dim, 4, 256, dropout=0.1, batch_first=True)
        self.out = nn.Linear(dim, n_topics)

    def forward(self, ids):
        pad = ids == 0
        h = self.attn(self.emb(ids), src_key_padding_mask=pad)
        h = h.masked_fill(pad.unsqueeze(-1), 0).sum(1) / (~pad).sum(1, keepdim=True)
        return self.out(h)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--articles", type=int, default=1600)
    parser.add_argument("--vocab", type=int, default=6000)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--mended", action="store_true")
    args = parser.parse_args()
    torch.manual_seed(0)

    texts, topics = synth_articles(args.articles, 8000, 10, length=30)
    vocab = (HashedVocab if args.mended else Vocab)(texts, args.vocab)
    rows = [(torch.tensor(vocab.encode(t)), int(y)) for t, y in zip(texts, topics)]
    print(f"{len(rows)} articles, vocabulary {len(vocab)}")

    loader = DataLoader(rows, batch_size=args.batch_size, shuffle=True, collate_fn=collate)
    model = TopicNet(len(vocab), 10)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=True)
    for epoch in range(args.epochs):
        total = 0.0
        for ids, y in loader:
            loss = F.cross_entropy(model(ids), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item()
        print(f"epoch {epoch} loss {total / len(loader):.4f}")


if __name__ == "__main__":
    main()
