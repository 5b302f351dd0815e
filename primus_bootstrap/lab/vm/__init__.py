"""Virtual machines with kernels of their own, for what a container cannot show: kernel arguments, reboots, swap, cgroups."""
