"""One node: inputs in, ``Ready`` out; its elections, its brake, its definitions, the rules it goes by.

Here belongs what concerns the node as a whole and puts the other rooms of the core together.
What is about members stands in core/members, what is about runs in core/runs.
"""
