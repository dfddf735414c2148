"""Documents that a person follows, as tests: each command of the document is typed, in its order."""
