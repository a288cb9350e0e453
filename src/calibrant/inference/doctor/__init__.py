"""What a model's log-probabilities mean, found out before anyone trusts them."""
