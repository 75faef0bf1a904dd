"""The learned policies for training jobs, `rltune-faithful` and `rltune-fixed`. Whoever only decides imports no torch.

`net` scores jobs (numpy), `choosers` draw by scores, `files` keeps what was learned; `learner` learns (torch).
"""
