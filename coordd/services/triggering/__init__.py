"""What starts runs beside the schedule and people: files, the ids that a command prints, calls and messages.

Here belong the tasks that look and listen, and that register a run before an arrival counts as consumed. Which arrivals
are new, and which node polls, is decided in `core/triggers`. Events of other jobs and nodes come through
`services/hooks`.
"""
