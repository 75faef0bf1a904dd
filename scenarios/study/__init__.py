"""The project's results: every main scenario and the paper's, all routers, at least ten seeds, and the page about them.

`python -m scenarios.study results` (`make results`) runs what is not stored yet and writes `docs/results.md`; `tune`,
`ablation`, `faster`, `fronts` and `paper-table` make what it is made of.

==================  ====================================================================================================
module              does
==================  ====================================================================================================
`cases`             which scenarios, which routers in each, and what is missing
`results`           composes the others: from scenario files to the page
`runs`              runs what is not stored yet, in processes beside each other; the fluid bound beside it
`sources`           which of our sources decide a stored result
`findings`          what was found, as plain data, and the judgement: does the learned router beat its best rival?
`page`              the same as Markdown; a pure function
`pictures`          the same as two charts
`tune_all`          Tide and its rivals tuned on every main scenario
`ablation`          what each ingredient of Tide is worth
`faster`            whether a router that decides faster is ever worse
`fronts`            the least energy that a kind of router takes at limits of its p99 latency
`tuned_rows`        what these three have in common
`paper_table`       the paper's accuracies, completed
`terminal_picture`  README's picture of a terminal
==================  ====================================================================================================
"""
