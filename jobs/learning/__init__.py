"""Learned policies for training jobs: windows to learn on, training over processes, judgement against baselines."""
