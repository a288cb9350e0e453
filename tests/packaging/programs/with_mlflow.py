"""Save a bundle as an MLflow model, load it with MLflow, and ask it about a cat and a dog."""

from __future__ import annotations

import sys

import mlflow
import pandas as pd

from calibrant.mlflow import save_model

save_model(sys.argv[1], "model")
model = mlflow.pyfunc.load_model("model")
print(*model.predict(pd.DataFrame({"text": ["a cat", "a dog"]})).label)
