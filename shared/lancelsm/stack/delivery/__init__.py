"""Deliver rows through a queue: check and send them, apply them in order, quarantine rows that can never fit."""
