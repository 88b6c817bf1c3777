"""What a response is worth: four scorers with the signature that verl calls.

    custom_reward_function.path=pkg://run.reward custom_reward_function.name=normalised

- ``strict``: verl's own GSM8K scorer, for figures that compare with published ones.
- ``normalised``: reads the marked answer as a person would; what the presets use.
- ``graded``: partial credit, for models too weak to ever be right; what the demo uses.
- ``digits``: a toy that even a random model learns, to see an algorithm learn.
"""

from run.reward.digits import digits
from run.reward.scorers import graded, normalised, strict

__all__ = ["digits", "graded", "normalised", "strict"]
