"""Where images and class names come from."""
