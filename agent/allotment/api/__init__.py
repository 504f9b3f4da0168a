"""The resource types of allotment.dev/v1alpha1, once; validation in the library's words."""
