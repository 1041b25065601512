"""Analysis of the bodies of user functions: results, and dependence on arguments alone."""
