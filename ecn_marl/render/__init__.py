"""Tables, plots, pictures and players of episodes."""
