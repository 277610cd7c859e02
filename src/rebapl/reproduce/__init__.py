"""The paper: its numbers, the suites and targets that make its tables and figures, the toy, the demo."""
