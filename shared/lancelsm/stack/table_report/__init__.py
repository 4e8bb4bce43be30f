"""A report of a table as a page: for the command `report`, and for the dashboard of a deployment."""
