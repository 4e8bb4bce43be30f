"""Deploy lancelsm on AWS as two CDK stacks, with one construct per capability."""
