"""Client of several providers: a strategy orders them, and learns from their answers."""
