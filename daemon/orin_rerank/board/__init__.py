"""The board: which module it is, how its power and clocks are set, and how warm it is.

Everything is read below one root path (`paths.BoardPaths`), so that a directory tree can stand for a board. Nothing
else in the program reads /sys or /proc/device-tree.
"""
