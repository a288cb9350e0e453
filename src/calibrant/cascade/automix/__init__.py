"""AutoMix: frontiers, meta-verifiers and their policies, as pure functions of scores."""
