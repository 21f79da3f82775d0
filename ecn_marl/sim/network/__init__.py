"""What the network is: hosts, switches, links and equal-cost paths. Nothing here moves."""
