"""Create, clone, adopt, rebuild and drop tables."""
