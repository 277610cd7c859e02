"""Task, encoder, learner and inference in; posterior out."""
