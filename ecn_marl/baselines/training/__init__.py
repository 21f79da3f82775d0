"""What every run shares: the contract of a trainer, the loop, checkpoints, logs."""
