"""What a `[[trigger]]` of a job file may say.

What a trigger is belongs in `core/jobs/trigger.py`; how arrivals are found belongs in `services/triggering`.
"""
