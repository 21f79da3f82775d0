"""Reference trainers, one readable file each."""
