"""When to ask the larger model: frontiers, meta-verifiers and their policies, as pure functions of scores."""
