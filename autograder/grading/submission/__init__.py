"""What was handed in: read, repaired, and put into the lab as it was released."""
