"""Fine-tune a tiny BERT-style classifier on short user intents with the HF Trainer."""
import argparse
import os
import random
import tempfile

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import numpy as np
import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import (BertConfig, BertForSequenceClassification, DataCollatorWithPadding,
                          PreTrainedTokenizerFast, Trainer, TrainingArguments, set_seed)

INTENTS = {
    "balance": "what is the balance of my {} account",
    "transfer": "please send {} euros to my {}",
    "card": "my card was {} yesterday near the {}",
    "weather": "will it be {} in the {} tomorrow",
    "alarm": "set an alarm for {}",
    "music": "play some {} music in the {}",
}
FILLERS = ["savings", "joint", "fifty", "ten", "brother", "stolen", "lost", "station", "rainy",
           "sunny", "north", "city", "six", "seven", "jazz", "quiet", "kitchen", "garden"]


def make_examples(n, seed):
    rng = random.Random(seed)
    names = list(INTENTS)
    rows = []
    for _ in range(n):
        label = rng.randrange(len(names))
        text = INTENTS[names[label]]
        while "{}" in text:
            text = text.replace("{}", rng.choice(FILLERS), 1)
        rows.append((text, label))
    return rows


def build_tokenizer():
    words = sorted({w for t in INTENTS.values() for w in t.split() if w != "{}"} | set(FILLERS))
    vocab = {w: i for i, w in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]"] + words)}
    tok = Tokenizer(models.WordLevel(vocab, unk_token="[UNK]"))
    tok.pre_tokenizer = pre_tokenizers.Whitespace()
    tok.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)])
    return PreTrainedTokenizerFast(tokenizer_object=tok, pad_token="[PAD]", unk_token="[UNK]",
                                   cls_token="[CLS]", sep_token="[SEP]", model_max_length=96)


class IntentDataset(torch.utils.data.Dataset):
    def __init__(self, rows, tokenizer, padding):
        texts, self.labels = zip(*rows)
        self.enc = tokenizer(list(texts), truncation=True, padding=padding, max_length=96)

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, i):
        item = {k: v[i] for k, v in self.enc.items()}
        item["labels"] = self.labels[i]
        return item


def compute_metrics(pred):
    return {"accuracy": float((np.argmax(pred.predictions, -1) == pred.label_ids).mean())}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--train-size", type=int, default=960)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--mended", action="store_true")
    args = parser.parse_args()
    set_seed(0)

    tokenizer = build_tokenizer()
    padding = False if args.mended else "max_length"
    train_set = IntentDataset(make_examples(args.train_size, 1), tokenizer, padding)
    eval_set = IntentDataset(make_examples(96, 2), tokenizer, padding)
    config = BertConfig(vocab_size=len(tokenizer), hidden_size=96, num_hidden_layers=2,
                        num_attention_heads=4, intermediate_size=384, max_position_embeddings=128,
                        num_labels=len(INTENTS))
    model = BertForSequenceClassification(config)
    with tempfile.TemporaryDirectory() as out:
        training_args = TrainingArguments(
            output_dir=out, num_train_epochs=1, per_device_train_batch_size=args.batch_size,
            per_device_eval_batch_size=32, learning_rate=5e-4, logging_steps=20, save_strategy="no",
            eval_strategy="epoch", report_to="none", use_cpu=True, disable_tqdm=True, seed=0)
        trainer = Trainer(model=model, args=training_args, train_dataset=train_set,
                          eval_dataset=eval_set, processing_class=tokenizer,
                          data_collator=DataCollatorWithPadding(tokenizer),
                          compute_metrics=compute_metrics)
        trainer.train()


if __name__ == "__main__":
    main()
