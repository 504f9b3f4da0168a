"""Leases whose pods are gone, pods without their lease, and addresses with two users: found, judged, mended."""
