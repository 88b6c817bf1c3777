"""What a person starts: presets, training, reward, rollout, metrics."""
