"""What the bodies of users' functions compute, and whether that depends on arguments alone."""
