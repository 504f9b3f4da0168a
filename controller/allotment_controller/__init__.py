"""The cluster-wide half of Allotment: what must be decided once per cluster."""
