"""Modules that all packages use: storage keys, clock and ids, setsums, settings. Imports no other package."""
