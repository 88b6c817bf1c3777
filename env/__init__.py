"""What is installed, for which hardware: pins, locks, install steps, cards, models."""
