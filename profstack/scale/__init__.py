"""Many ranks, wherever their files are: each is summed up alone, on a cluster if there is one."""
