"""Answer tagging requests for photos with a small CLIP model.

Each request brings one photo; the answer holds the three tags that fit best.
The weights are random and the photos are drawn by the program.
"""
import argparse
import statistics
import time

import numpy as np
import torch
from PIL import Image
from transformers import CLIPConfig, CLIPModel
from transformers.utils import logging

SUBJECTS = ["dog", "cat", "horse", "sailing boat", "bridge", "mountain", "birthday cake",
            "bicycle", "old church", "street market", "lighthouse", "football match"]
SETTINGS = ["at night", "in the snow", "on a sunny day", "seen from above"]
MEAN = torch.tensor([0.481, 0.458, 0.408]).view(3, 1, 1)
STD = torch.tensor([0.269, 0.261, 0.276]).view(3, 1, 1)


class WordTokenizer:
    """One id per word; 0 pads, 1 starts and the highest id ends a text."""

    def __init__(self, texts):
        words = sorted({word for text in texts for word in text.split()})
        self.ids = {word: number for number, word in enumerate(words, start=2)}
        self.end = len(words) + 2

    def __call__(self, texts):
        rows = [[1] + [self.ids[word] for word in text.split()] + [self.end]
                for text in texts]
        longest = max(len(row) for row in rows)
        return {
            "input_ids": torch.tensor([row + [0] * (longest - len(row)) for row in rows]),
            "attention_mask": torch.tensor(
                [[1] * len(row) + [0] * (longest - len(row)) for row in rows]),
        }


def build_model(words, size):
    text = dict(vocab_size=words + 3, hidden_size=160, intermediate_size=640,
                num_hidden_layers=3, num_attention_heads=4, max_position_embeddings=24,
                pad_token_id=0, bos_token_id=1, eos_token_id=words + 2)
    vision = dict(hidden_size=192, intermediate_size=768, num_hidden_layers=5,
                  num_attention_heads=6, image_size=size, patch_size=8)
    return CLIPModel(CLIPConfig(text_config=text, vision_config=vision, projection_dim=96)).eval()


def take_photo(rng, width=320, height=240):
    """A smooth random scene with a few rectangles."""
    coarse = rng.integers(0, 255, (6, 8, 3), dtype=np.uint8)
    photo = np.array(Image.fromarray(coarse).resize((width, height), Image.BICUBIC))
    for _ in range(5):
        x, y = rng.integers(0, width - 60), rng.integers(0, height - 60)
        photo[y:y + rng.integers(10, 60), x:x + rng.integers(10, 60)] = rng.integers(0, 255, 3)
    return Image.fromarray(photo)


class PhotoTagger:
    def __init__(self, model, tags, size):
        self.model, self.tags, self.size = model, tags, size
        texts = [f"a photo of a {tag}" for tag in tags]
        self.prompts = WordTokenizer(texts)(texts)

    def preprocess(self, photo):
        photo = photo.resize((self.size, self.size), Image.BILINEAR)
        pixels = torch.from_numpy(np.array(photo)).permute(2, 0, 1).float() / 255
        return ((pixels - MEAN) / STD)[None]

    def scores(self, pixels):
        outputs = self.model(pixel_values=pixels, **self.prompts)
        return outputs.logits_per_image.softmax(dim=-1)[0]

    @torch.inference_mode()
    def answer(self, photo, count=3):
        best = self.scores(self.preprocess(photo)).topk(count)
        return [(self.tags[index], score)
                for index, score in zip(best.indices.tolist(), best.values.tolist())]


class PreparedPhotoTagger(PhotoTagger):
    @torch.inference_mode()
    def __init__(self, model, tags, size):
        super().__init__(model, tags, size)
        features = model.get_text_features(**self.prompts).pooler_output
        self.text = features / features.norm(dim=-1, keepdim=True)

    def scores(self, pixels):
        image = self.model.get_image_features(pixel_values=pixels).pooler_output
        image = image / image.norm(dim=-1, keepdim=True)
        return (self.model.logit_scale.exp() * image @ self.text.T).softmax(dim=-1)[0]


def serve(tagger, requests, seed):
    rng = np.random.default_rng(seed)
    photos = [take_photo(rng) for _ in range(32)]
    counts, waits, total = {}, [], 0.0
    for number in range(requests):
        start = time.perf_counter()
        answer = tagger.answer(photos[number % len(photos)])
        waits.append(time.perf_counter() - start)
        counts[answer[0][0]] = counts.get(answer[0][0], 0) + 1
        total += answer[0][1]
        if (number + 1) % 50 == 0:
            print(f"{number + 1} requests, median {1000 * statistics.median(waits):.1f} ms")
    return counts, waits, total / requests


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=200)
    parser.add_argument("--size", type=int, default=96)
    parser.add_argument("--seed", type=int, default=32)
    parser.add_argument("--mended", action="store_true")
    args = parser.parse_args()
    logging.set_verbosity_error()
    torch.manual_seed(0)
    tags = [f"{subject} {setting}" for subject in SUBJECTS for setting in SETTINGS]
    words = {word for tag in tags for word in f"a photo of a {tag}".split()}
    model = build_model(len(words), args.size)
    tagger = (PreparedPhotoTagger if args.mended else PhotoTagger)(model, tags, args.size)
    counts, waits, certainty = serve(tagger, args.requests, args.seed)
    favourite = max(counts, key=counts.get)
    print(f"most frequent: {favourite} ({counts[favourite]} of {args.requests}), "
          f"mean certainty {certainty:.5f}, slowest answer {1000 * max(waits):.0f} ms")


if __name__ == "__main__":
    main()
