"""Third-party packages as the functions and the Spark job get them; built by `make build`."""
