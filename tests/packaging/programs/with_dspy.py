"""Program for the extra `dspy`: a module with confidence, and a search with ``dspy.GEPA``."""

from __future__ import annotations

import dspy

from calibrant.adapters.dspy import ConfidenceClassifier
from calibrant.core import Example
from calibrant.inference import Classifier
from calibrant.optimization import ExemplarProposer
from calibrant.testing import FakeClient

LABELS = ["cat", "dog"]

client = FakeClient(LABELS, {"meow": ("cat", 0.9), "woof": ("dog", 0.8)})
program = ConfidenceClassifier(
    Classifier(model=client, labels=LABELS, field="category", prompt="Which animal?")
)
found = program(text="meow")
assert (found.label, found.outcome) == ("cat", "ok"), found
assert abs(found.confidence - 0.9) < 1e-6
assert found.distribution.labels == ("cat", "dog")

rows = [
    Example(input=f"{n} {noise}", answer=label)
    for n in range(4)
    for noise, label in (("meow", "cat"), ("woof", "dog"))
]
proposer = ExemplarProposer(train=rows)
proposer.prepare(labels=program.classifier.labels, field="category")
metric = program.metric()
search = dspy.GEPA(
    metric=metric,
    max_metric_calls=30,
    num_threads=2,
    instruction_proposer=proposer,
    gepa_kwargs={"stop_callbacks": metric.stop},
)
examples = program.examples(rows)
best = search.compile(program, trainset=examples, valset=examples)
assert best(text="woof").label == "dog"
