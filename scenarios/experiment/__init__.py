"""A scenario made into objects that simulation and executors are built from."""
