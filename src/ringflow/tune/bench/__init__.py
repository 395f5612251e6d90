"""What a search costs and gains: `ringflow bench tune`."""
