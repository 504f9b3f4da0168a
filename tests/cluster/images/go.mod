// What runs in the pods of the test cluster. See ../images.py.
module allotment.dev/cluster/images

go 1.26.0
