"""What students made, as HTML that does nothing."""
