"""AutoMix: cost-performance frontiers, meta-verifiers and routing policies, learned from scores."""
