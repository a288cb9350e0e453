"""calibrant."""
