"""The table as it is: one view of log, generations and base, and the rows of it."""
