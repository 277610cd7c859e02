"""Runs: configured, trained, scored, kept, and shown as tables and figures."""
