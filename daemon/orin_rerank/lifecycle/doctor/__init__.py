"""What support would ask for: is this machine as it must be, and if not, what helps.

Each check is a function of the board's files and a `Context` to a `Finding`, or None where it does not apply; so a
folder tree and a few values stand for any machine. Nothing is changed, and nothing of a request is seen.
"""
