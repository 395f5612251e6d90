"""The networks: embed elements, let them talk, say what each of them is."""
