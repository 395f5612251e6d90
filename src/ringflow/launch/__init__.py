"""Starting the same command in several processes, on this machine or on a cluster. Free of torch until something is started."""
