"""The project's results: every main scenario and the paper's, all routers, at least ten seeds, and the page about them.

`python -m benchmarks.study results` (`make results`) runs what is not stored yet and writes `docs/results.md`; `tune`,
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
`live`              what the scenarios of live serving came to; `live_findings` and `live_page` are its parts
`margins`           with which margin a tuned router keeps what is promised; `margin` makes such a router
`carried`           how many images a second each tuned router carries
`jobs_results`      RLTune trained, taken apart and judged; `jobs_page` is what it says
`commands_page`     the page of all commands
`terminal_picture`  README's picture of a terminal
==================  ====================================================================================================
"""
