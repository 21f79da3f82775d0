"""How well policies do: episodes, completion times, statistics, keys of episodes."""
