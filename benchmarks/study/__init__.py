"""The project's results: the suite's published rows, live runs, the paper's experiment, and the pages about them.

==================  ====================================================================================================
module              does
==================  ====================================================================================================
`suite`             tunes the rules for every case of the suite, runs all at equal accuracy, writes `docs/results.md`
`live`              what the scenarios of live serving came to, from run folders to `docs/live.md`
`pages`             pages of data frames and templates
`paper_table`       the paper's accuracies, completed
`commands_page`     the page of all commands
`terminal_picture`  README's picture of a terminal
==================  ====================================================================================================

`benchmarks.grid` runs every grid; `python -m benchmarks NAME` is the door.
"""
