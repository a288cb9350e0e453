"""The extra `embeddings`: a small table of word vectors, made here, places texts for LinUCB."""

from __future__ import annotations

import asyncio
import sys

import numpy as np
from model2vec import StaticModel
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace

from calibrant.inference import open_embedder

WORDS = ["[UNK]", "[PAD]", "cat", "dog", "meow", "woof"]
VECTORS = np.array([[0, 0], [0, 0], [1, 0], [0, 1], [0.9, 0.1], [0.1, 0.9]], dtype=np.float32)

tokenizer = Tokenizer(WordLevel({word: number for number, word in enumerate(WORDS)}, unk_token="[UNK]"))
tokenizer.pre_tokenizer = Whitespace()
StaticModel(vectors=VECTORS, tokenizer=tokenizer, normalize=True).save_pretrained(sys.argv[1])

embedder = open_embedder(f"model2vec:{sys.argv[1]}", dim=2)
cat, dog, meow = asyncio.run(embedder.embed(["cat", "dog", "meow meow"]))
assert cat @ meow > 0.9, (cat, meow)
assert dog @ meow < 0.2, (dog, meow)
embedder.close()
