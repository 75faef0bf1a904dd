"""The project's results: the suite's published rows, live runs, the paper's experiment, and the pages about them.

==================  ====================================================================================================
module              does
==================  ====================================================================================================
`suite`             tunes the rules for every case of the suite, runs all at equal accuracy, writes `docs/results.md`
`live`              the results of live serving's scenarios, from run folders to `docs/live.md` and README's chart
`pages`             pages of data frames and templates
`paper_table`       the paper's accuracies, completed
`commands_page`     the page of all commands
==================  ====================================================================================================

`benchmarks.grid` runs every grid; `python -m benchmarks NAME` is the command.
"""
