"""Runs: a configuration in, a folder out; and the engines that decide where runs happen."""
