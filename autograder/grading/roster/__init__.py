"""Who takes the course, and how each platform names them."""
