"""A serverless log-structured merge tree in front of Lance tables: what was acknowledged is there, at once and for ever."""
