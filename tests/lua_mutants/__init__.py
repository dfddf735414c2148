"""The ledger's Lua scripts, changed one place at a time: the contract tests must notice each change.

``edits`` makes the changes. ``recorder`` records what the tests asked the unchanged scripts; ``conversation`` asks a
changed script the same. ``survivors.toml`` lists the changes that no test notices, each with its reason.
"""
