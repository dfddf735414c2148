"""The hooks of coordd.toml: what a `[[hook]]` may say, and the job that it becomes.

The events, and the calls, belong in `services/hooks`. Settings that are a single table belong one room up.
"""
