"""PPO of Stable-Baselines3 beside this project's, on the same cluster; `make bench-sb3`."""
