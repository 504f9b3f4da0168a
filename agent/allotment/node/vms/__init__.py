"""Virtual machines of KubeVirt: which pods run one, and the addresses that are theirs (ADR 0013)."""
