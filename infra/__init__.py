"""The deployment on AWS: two stacks, one construct for each capability."""
