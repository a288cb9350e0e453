"""Program for the extra `embeddings`: a small table of word vectors serves LinUCB and heads."""

from __future__ import annotations

import asyncio
import sys

import numpy as np
from model2vec import StaticModel
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace

from calibrant.heads import fit_head
from calibrant.inference import open_embedder, open_embedding_model

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

# Words that no labelled row holds are known by their likes.
texts, answers = ["cat", "dog"] * 20, [0, 1] * 20
head = fit_head(
    np.log(np.full((40, 2), 0.5)),
    answers,
    labels=["first", "second"],
    texts=texts,
    embedding=open_embedding_model(f"model2vec:{sys.argv[1]}"),
)
found = head.transform(np.log(np.full((2, 2), 0.5)), ["woof", "meow"]).argmax(axis=1)
assert found.tolist() == [1, 0], (head.title, found)
