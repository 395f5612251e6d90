"""What the steps of a training cost: time by phase, bytes on the wire, and who is waited for."""
