"""Runs automix-llm on splits made elsewhere; called by bench_automix.py in an environment of its own.

    python _automix_peer.py SPLITS.npz POLICIES.npz

For every split and method: what each parameter does with the test rows, what it reached on the training rows, and
which parameter the package itself picks.
"""

from __future__ import annotations

import sys
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from automix import POMDP, Automix, SelfConsistency, Threshold

METHODS = {"Threshold": Threshold, "SelfConsistency": SelfConsistency, "POMDP": POMDP}


def frame(rows: NDArray[np.float64]) -> pd.DataFrame:
    """Return signal, small and large scores, shape (3, n), as the package wants them."""
    signal, small, large = rows
    state = np.select(
        [small < large, small > large, large == 1], ["NEEDY", "UNDEFINED", "GOOD"], default="HOPELESS"
    )
    columns = {"p_ver_13b": signal, "llama13b_f1": small, "llama70b_f1": large, "category": state}
    return pd.DataFrame(columns)


def main(source: Path, target: Path) -> None:
    """Read the splits, write the policies."""
    splits, found = np.load(source), {}
    costs, verifier_cost = splits["costs"].tolist(), float(splits["verifier_cost"])
    for name in sorted(key.removesuffix("/train") for key in splits.files if key.endswith("/train")):
        train, test = frame(splits[f"{name}/train"]), frame(splits[f"{name}/test"])
        for title, kind in METHODS.items():
            method = kind(int(splits["num_bins"]))
            model = Automix(method, costs=costs, verifier_cost=verifier_cost)
            points, seen = [], {}
            for param in method.generate_points(train):
                routed = np.asarray(method.run(train, param), dtype=bool)
                reached = model.compute_performance_cost(train, routed)
                decisions = np.asarray(method.run(test, param), dtype=bool)
                seen[str(param)] = len(points)
                points.append((*reached, decisions))
            model.train(train)
            key = f"{name}/{title}"
            found[f"{key}/performance"] = np.array([point[0] for point in points])
            found[f"{key}/cost"] = np.array([point[1] for point in points])
            found[f"{key}/routed"] = np.array([point[2] for point in points])
            found[f"{key}/chosen"] = np.array(seen[str(model.best_param)])
    np.savez_compressed(target, **found)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    main(Path(sys.argv[1]), Path(sys.argv[2]))
