"""What people and machines read: one renderer per format. All of it is a function of its input alone."""
