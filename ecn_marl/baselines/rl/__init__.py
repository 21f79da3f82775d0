"""What algorithms share: networks, rollouts, replay, advantages, losses; each idea exists once."""
