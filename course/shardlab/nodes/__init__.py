"""Nodes on one machine: network namespaces joined by links of a given speed."""
