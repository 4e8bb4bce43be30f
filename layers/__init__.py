"""Build the third-party packages for the functions and the Spark job: `make build`."""
