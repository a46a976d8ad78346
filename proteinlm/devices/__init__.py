"""Devices and processes: the mesh, joining several hosts, and TPU topologies to compile for."""
