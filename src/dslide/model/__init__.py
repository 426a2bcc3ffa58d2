"""The network: layers, LSH look-up, active sets, losses, sharding and collectives."""
