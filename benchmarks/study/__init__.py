"""The project's results: every main scenario and the paper's, all routers, ten seeds or more, and the pages about them.

==================  ====================================================================================================
module              does
==================  ====================================================================================================
`candidates`        which scenarios, which routers in each, and what is missing
`runs`              their grid: scenario x router x seed; the fluid bound beside it
`judge`             does the learned router beat its best baseline? What counts stands here alone
`results`           from scenario files to `docs/data/results-*.csv` and `docs/results.md`
`tables`            grids of tuned routers: ablation, faster, fronts
`headroom`          what there is to win: tuned rules where a scenario's difficulty is taken away
`learned`           what policy gradient adds to a searched policy
`tune`              Compass and its baselines tuned on every main scenario
`live`              what the scenarios of live serving came to, from run folders to `docs/live.md`
`pages`             pages of data frames and templates; `pictures` their charts
`paper_table`       the paper's accuracies, completed
`commands_page`     the page of all commands
`terminal_picture`  README's picture of a terminal
==================  ====================================================================================================

`benchmarks.grid` runs every grid; `python -m benchmarks NAME` is the door.
"""
