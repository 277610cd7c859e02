"""Runs: each takes a configuration and makes a folder. Also the engines, which decide where runs happen."""
