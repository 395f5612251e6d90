"""The runs and studies under a folder, on one page."""
