"""Program for the base installation: a bundle is loaded and asked, and a prompt optimised."""

from __future__ import annotations

import sys
import time
from pathlib import Path

start = time.perf_counter()
import calibrant  # noqa: E402

print(f"import calibrant: {1000 * (time.perf_counter() - start):.0f} ms")

from calibrant.core import Example, Task  # noqa: E402
from calibrant.inference import Classifier  # noqa: E402
from calibrant.optimization import ExemplarProposer, optimize  # noqa: E402
from calibrant.testing import FakeClient  # noqa: E402

assert "site-packages" in calibrant.__file__, calibrant.__file__

classifier = calibrant.load(sys.argv[1])
prediction = classifier.classify("another cat")
classifier.close()
assert (prediction.label, prediction.outcome) == ("cat", "ok"), prediction
assert prediction.confidence is not None
assert 0.5 < prediction.confidence <= 1.0

fake = FakeClient(["cat", "dog"], {"meow": ("cat", 0.9), "woof": ("dog", 0.8)})
asked = Classifier(model=fake, labels=["cat", "dog"], field="category", prompt="Which animal?")
assert [found.label for found in asked.classify_many(["meow", "woof"])] == ["cat", "dog"]

rows = [
    Example(input=f"{n} {noise}", answer=label)
    for n in range(4)
    for noise, label in (("meow", "cat"), ("woof", "dog"))
]
task = Task(
    name="animals",
    labels=["cat", "dog"],
    field="category",
    prompt="Which?",
    train=rows,
    validation=rows,
    test=rows,
)
result = optimize(
    task, model=fake, proposer=ExemplarProposer(train=rows), max_metric_calls=40, out=Path("run")
)
assert Path("run/best_prompt.txt").is_file()
print(result.best_prompt)
