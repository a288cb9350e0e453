"""From recorded runs to a cascade: candidates, the choice among them, its guarantee, and what it would have cost."""
