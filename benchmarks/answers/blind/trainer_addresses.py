"""Find the parts of postal addresses with DistilBERT and the Trainer.

Addresses are written by rules: name, street, house number, town, postcode and
country, some of them missing.  Every word is labelled with its part.
"""
import argparse
import random

import numpy as np
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (DataCollatorForTokenClassification, DistilBertConfig,
                          DistilBertForTokenClassification, PreTrainedTokenizerFast, Trainer,
                          TrainingArguments, set_seed)

PARTS = ["other", "name", "street", "number", "town", "postcode", "country"]
SYLLABLES = ["ber", "lin", "ham", "ox", "ford", "san", "ta", "ro", "mel", "ker", "vik", "ol",
             "dun", "wel", "mar", "go"]


def make_names(rng, count):
    return ["".join(rng.choices(SYLLABLES, k=rng.randint(2, 3))) for _ in range(count)]


class AddressWriter:
    def __init__(self, seed):
        self.rng = random.Random(seed)
        names = random.Random(33)
        self.people, self.streets = make_names(names, 300), make_names(names, 300)
        self.towns, self.countries = make_names(names, 200), make_names(names, 40)

    def write(self):
        """Words and the part each of them belongs to."""
        rng = self.rng
        pieces = []
        if rng.random() < 0.8:
            pieces += [("mr" if rng.random() < 0.5 else "ms", "other")]
            pieces += [(word, "name") for word in rng.choices(self.people, k=rng.randint(1, 3))]
        street = [(word, "street") for word in rng.choices(self.streets, k=rng.randint(1, 2))]
        street += [(rng.choice(["street", "road", "lane"]), "street")]
        number = [(str(rng.randint(1, 200)), "number")]
        pieces += number + street if rng.random() < 0.5 else street + number
        pieces += [(rng.choice(self.towns), "town")]
        if rng.random() < 0.9:
            pieces += [(str(rng.randint(1000, 1400)), "postcode")]
        if rng.random() < 0.4:
            pieces += [(rng.choice(self.countries), "country")]
        return [word for word, _ in pieces], [PARTS.index(part) for _, part in pieces]


def build_tokenizer(writer):
    words = ["[PAD]", "[UNK]", "mr", "ms", "street", "road", "lane"]
    words += [str(number) for number in range(1, 1401)]
    words += sorted({*writer.people, *writer.streets, *writer.towns, *writer.countries})
    vocabulary = {word: index for index, word in enumerate(words)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="[PAD]",
                                   unk_token="[UNK]")


def encode(tokenizer, addresses, padding, max_length):
    words, parts = zip(*addresses)
    encoded = tokenizer([list(row) for row in words], is_split_into_words=True,
                        padding=padding, truncation=True, max_length=max_length,
                        return_token_type_ids=False)
    rows = []
    for index, labels in enumerate(parts):
        rows.append({
            "input_ids": encoded["input_ids"][index],
            "attention_mask": encoded["attention_mask"][index],
            "labels": [-100 if word is None else labels[word]
                       for word in encoded.word_ids(index)],
        })
    return rows


def word_accuracy(prediction):
    labelled = prediction.label_ids != -100
    hits = prediction.predictions.argmax(-1) == prediction.label_ids
    return {"accuracy": float(np.mean(hits[labelled]))}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--addresses", type=int, default=1200)
    parser.add_argument("--max-length", type=int, default=96)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--epochs", type=float, default=1)
    parser.add_argument("--mended", action="store_true")
    args = parser.parse_args()
    padding = False if args.mended else "max_length"
    set_seed(0)
    writer = AddressWriter(seed=34)
    tokenizer = build_tokenizer(writer)
    addresses = [writer.write() for _ in range(args.addresses + 160)]
    rows = encode(tokenizer, addresses, padding, args.max_length)
    model = DistilBertForTokenClassification(DistilBertConfig(
        vocab_size=len(tokenizer), dim=128, hidden_dim=512, n_layers=3, n_heads=4,
        max_position_embeddings=128, num_labels=len(PARTS), dropout=0.0, attention_dropout=0.0))
    trainer = Trainer(
        model=model, train_dataset=rows[:args.addresses], eval_dataset=rows[args.addresses:],
        data_collator=DataCollatorForTokenClassification(tokenizer),
        compute_metrics=word_accuracy,
        args=TrainingArguments(
            output_dir="/tmp/addresses", num_train_epochs=args.epochs, learning_rate=1e-3,
            per_device_train_batch_size=args.batch_size, per_device_eval_batch_size=32,
            save_strategy="no", logging_steps=50, report_to="none", use_cpu=True,
            disable_tqdm=True, seed=0, dataloader_pin_memory=False))
    trainer.train()
    print(f"accuracy {trainer.evaluate()['eval_accuracy']:.4f}")


if __name__ == "__main__":
    main()
