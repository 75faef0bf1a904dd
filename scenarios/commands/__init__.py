"""What each command does: a few lines of the public Python each, and its result as text or JSON.

Heavy libraries (torch, matplotlib) are opened by the command that needs them.
"""
