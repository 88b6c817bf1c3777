"""What builds the image and starts it."""
