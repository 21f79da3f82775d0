"""What the trainers share; each idea exists once."""
