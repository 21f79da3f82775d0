"""The decision problems: observations, actions, rewards, episodes, scenarios, PettingZoo faces."""
