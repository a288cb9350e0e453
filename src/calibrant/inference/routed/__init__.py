"""Several providers as one client: a strategy says who is asked first, and learns from what came."""
