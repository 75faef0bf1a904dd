"""The project's results: every main scenario and the paper's, all routers, at least ten seeds, and the page about them.

`python -m scenarios.study` (`make results`) runs what is not stored yet and writes `docs/results.md`.

=============  =====================================================================================================
module         does
=============  =====================================================================================================
`cases`        which scenarios, which routers in each, and what is missing
`runs`         runs what is not stored yet, in processes beside each other; the fluid bound beside it
`findings`     what was found, as plain data, and the judgement: does the learned router beat its best rival?
`page`         the same as Markdown; a pure function
`pictures`     the same as two charts
=============  =====================================================================================================
"""
