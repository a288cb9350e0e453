"""Program for the extra `conformal`: sets of labels hold the true one as often as promised."""

from __future__ import annotations

import numpy as np

from calibrant.calibration import ConformalSets

rng = np.random.default_rng(0)
probabilities = rng.dirichlet([1.0, 1.0, 1.0], size=2000)
answers = np.array([rng.choice(3, p=row) for row in probabilities])
sets = ConformalSets().fit(np.log(probabilities[:1000]), answers[:1000]).predict(np.log(probabilities[1000:]))
covered = sets[np.arange(1000), answers[1000:]].mean()
assert 0.86 <= covered <= 0.94, covered  # three standard errors of both halves around 0.9
