"""The device mesh and sharding, runs of several processes, and TPU topologies to compile for."""
