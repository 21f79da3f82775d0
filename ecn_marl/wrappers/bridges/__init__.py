"""The environments as other libraries expect them."""
