"""The demo: send a year of flights through the whole pipeline, then prove that nothing was lost.

`embedded` uses a table in a directory, `deployed` the functions of a deployment. Data and proof are the same. `smoke`
sends one row through a deployment.
"""
