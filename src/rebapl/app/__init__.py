"""The page and the JSON API of `rebapl serve`."""
