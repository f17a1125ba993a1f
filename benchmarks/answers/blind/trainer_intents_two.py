"""Fine-tune a small BERT classifier for the intents of help-desk messages.

Messages are put together from templates and made-up words.  They are split
into word pieces by a greedy longest-match tokenizer.
"""
import argparse
import random
import unicodedata

import numpy as np
import torch
from torch.utils.data import Dataset
from transformers import (BertConfig, BertForSequenceClassification, Trainer,
                          TrainingArguments)

INTENTS = 8
SYLLABLES = ["ka", "lo", "mi", "ten", "ru", "sa", "ver", "do", "pli", "gar", "nu", "est", "bo",
             "chi", "lan", "tor"]


def make_lexicon(rng, words):
    return ["".join(rng.choices(SYLLABLES, k=rng.randint(2, 5))) for _ in range(words)]


def make_messages(count, words_per_message, seed=22):
    rng = random.Random(seed)
    lexicon = make_lexicon(rng, 1500)
    topics = [rng.sample(lexicon, 60) for _ in range(INTENTS)]
    texts, labels = [], []
    for _ in range(count):
        label = rng.randrange(INTENTS)
        words = [rng.choice(topics[label] if rng.random() < 0.3 else lexicon)
                 for _ in range(words_per_message)]
        words[0] = words[0].capitalize()
        texts.append(" ".join(words) + rng.choice([".", "!", "?"]))
        labels.append(label)
    return texts, labels


class WordPieceTokenizer:
    """Lower-cases, strips accents and splits words into known pieces."""

    def __init__(self, max_length):
        pieces = SYLLABLES + [a + b for a in SYLLABLES for b in SYLLABLES]
        letters = [chr(code) for code in range(ord("a"), ord("z") + 1)] + list(".!?")
        vocabulary = ["[PAD]", "[CLS]", "[SEP]", "[UNK]"] + letters + pieces
        vocabulary += ["##" + piece for piece in letters + pieces]
        self.ids = {piece: index for index, piece in enumerate(vocabulary)}
        self.max_length = max_length

    def normalise(self, text):
        characters = []
        for character in unicodedata.normalize("NFD", text.lower()):
            category = unicodedata.category(character)
            if category == "Mn" or category.startswith("C"):
                continue
            characters.append(f" {character} " if category.startswith("P") else character)
        return "".join(characters)

    def split_word(self, word):
        pieces, start = [], 0
        while start < len(word):
            for end in range(len(word), start, -1):
                piece = word[start:end] if start == 0 else "##" + word[start:end]
                if piece in self.ids:
                    pieces.append(self.ids[piece])
                    start = end
                    break
            else:
                return [self.ids["[UNK]"]]
        return pieces

    def __call__(self, text):
        ids = [self.ids["[CLS]"]]
        for word in self.normalise(text).split():
            ids.extend(self.split_word(word))
        ids = ids[:self.max_length - 1] + [self.ids["[SEP]"]]
        mask = [1] * len(ids) + [0] * (self.max_length - len(ids))
        ids = ids + [self.ids["[PAD]"]] * (self.max_length - len(ids))
        return {"input_ids": torch.tensor(ids), "attention_mask": torch.tensor(mask)}


class Messages(Dataset):
    def __init__(self, texts, labels, tokenizer, tokenize_once=False):
        self.texts, self.labels, self.tokenizer = texts, labels, tokenizer
        self.encoded = [tokenizer(text) for text in texts] if tokenize_once else None

    def __len__(self):
        return len(self.texts)

    def __getitem__(self, index):
        encoded = self.encoded[index] if self.encoded else self.tokenizer(self.texts[index])
        return {**encoded, "labels": self.labels[index]}


def accuracy(prediction):
    return {"accuracy": float(np.mean(prediction.predictions.argmax(-1) == prediction.label_ids))}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=400)
    parser.add_argument("--words", type=int, default=400, help="words in a message")
    parser.add_argument("--max-length", type=int, default=32)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--epochs", type=float, default=14)
    parser.add_argument("--mended", action="store_true")
    args = parser.parse_args()
    torch.manual_seed(0)
    texts, labels = make_messages(args.messages + 80, args.words)
    tokenizer = WordPieceTokenizer(args.max_length)
    split = args.messages
    train_set = Messages(texts[:split], labels[:split], tokenizer, args.mended)
    test_set = Messages(texts[split:], labels[split:], tokenizer, args.mended)
    model = BertForSequenceClassification(BertConfig(
        vocab_size=len(tokenizer.ids), hidden_size=96, num_hidden_layers=2,
        num_attention_heads=4, intermediate_size=256, max_position_embeddings=args.max_length,
        num_labels=INTENTS))
    trainer = Trainer(
        model=model, train_dataset=train_set, eval_dataset=test_set, compute_metrics=accuracy,
        args=TrainingArguments(
            output_dir="/tmp/intents", num_train_epochs=args.epochs, learning_rate=5e-4,
            per_device_train_batch_size=args.batch_size, save_strategy="no", logging_steps=100,
            report_to="none", use_cpu=True, disable_tqdm=True, seed=0,
            dataloader_pin_memory=False))
    trainer.train()
    print(f"accuracy {trainer.evaluate()['eval_accuracy']:.4f}")


if __name__ == "__main__":
    main()
