"""What is learned from: sources, checks, filtering by tokens, parquet and manifests."""
