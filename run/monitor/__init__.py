"""What a run uses while it runs: memory of cards and host, once a second."""
