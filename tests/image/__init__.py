"""What is inside the image, asked of the image itself; needs a container engine and the image."""
